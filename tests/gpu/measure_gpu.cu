/* What decides the GPU contract, measured: a program of its own, part of no library. scripts/bench_gpu runs it.
 *
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a measure_gpu.cu -o measure_gpu && ./measure_gpu
 *
 * Questions: what memory gives; whether an output of mma.sync depends on its place in the tile or on its neighbours; how
 * the accumulator rounds; whether wgmma and chains of mma.sync agree; what a launch costs. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK_CUDA(call)                                                                          \
    do {                                                                                          \
        cudaError_t e_ = (call);                                                                  \
        if (e_ != cudaSuccess) {                                                                  \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                    \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* ---- time ---- */

template <typename Fn> static float median_ms(int runs, Fn fn)
{
    std::vector<float> ms(runs);
    cudaEvent_t a, b;
    CHECK_CUDA(cudaEventCreate(&a));
    CHECK_CUDA(cudaEventCreate(&b));
    fn();
    for (int i = 0; i < runs; i++) {
        CHECK_CUDA(cudaEventRecord(a));
        fn();
        CHECK_CUDA(cudaEventRecord(b));
        CHECK_CUDA(cudaEventSynchronize(b));
        CHECK_CUDA(cudaEventElapsedTime(&ms[i], a, b));
    }
    for (int i = 0; i < runs; i++)
        for (int j = i + 1; j < runs; j++)
            if (ms[j] < ms[i]) std::swap(ms[i], ms[j]);
    CHECK_CUDA(cudaGetLastError());
    return ms[runs / 2];
}

/* ---- memory ---- */

template <int UNROLL> __global__ void read_kernel(const uint4 *data, size_t n, uint32_t *sink)
{
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x * UNROLL;
    for (size_t at = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x; at < n; at += step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) v[i] = __ldcs(data + at + (size_t)i * blockDim.x);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678) *sink = sum;
}

__global__ void copy_kernel(uint4 *out, const uint4 *in, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x * 4;
    for (size_t at = (size_t)blockIdx.x * blockDim.x * 4 + threadIdx.x; at < n; at += step) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = in[at + (size_t)i * blockDim.x];
#pragma unroll
        for (int i = 0; i < 4; i++) out[at + (size_t)i * blockDim.x] = v[i];
    }
}

__global__ void random_words(uint32_t *out, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        out[i] = (uint32_t)(x >> 32);
    }
}

static void measure_memory(int n_sm)
{
    size_t bytes = (size_t)4 << 30, n = bytes / sizeof(uint4);
    char *data;
    CHECK_CUDA(cudaMalloc(&data, 2 * bytes));
    random_words<<<4096, 256>>>((uint32_t *)data, 2 * bytes / 4);
    uint32_t *sink = (uint32_t *)data;
    double best = 0;
    for (int per_sm = 1; per_sm <= 8; per_sm *= 2) {
        float ms = median_ms(7, [&] { read_kernel<8><<<n_sm * per_sm, 256>>>((const uint4 *)data, n, sink); });
        printf("  read, %d blocks a multiprocessor, 8 loads in flight: %.0f GB/s\n", per_sm, bytes / ms * 1e-6);
        best = fmax(best, bytes / ms * 1e-6);
    }
    for (size_t mb : { 8, 16, 32, 64, 128, 256, 1024 }) {
        size_t piece = mb << 20, pieces = 2 * bytes / piece, at = 0;
        float ms = median_ms(21, [&] {
            read_kernel<8><<<n_sm * 4, 256>>>((const uint4 *)(data + at * piece), piece / sizeof(uint4), sink);
            at = (at + 7) % pieces;
        });
        printf("  read of %4zu MB in one launch: %.1f us, %.0f GB/s\n", mb, ms * 1e3, piece / ms * 1e-6);
    }
    float ms = median_ms(7, [&] { copy_kernel<<<n_sm * 8, 256>>>((uint4 *)(data + bytes), (const uint4 *)data, n); });
    printf("  copy: %.0f GB/s (read + written)\n", 2 * bytes / ms * 1e-6);
    printf("best read: %.0f GB/s\n", best);
    CHECK_CUDA(cudaFree(data));
}

/* ---- one mma.sync ---- */

static __device__ void mma_k16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ void mma_k8(float d[4], const uint32_t a[2], uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* d [n][16][8] = c + a [n][16][k] b [n][8][k]^T, k a multiple of 16; one warp a problem. k8: as pairs of m16n8k8. */
__global__ void mma_problems(float *d, const float *c, const uint16_t *a, const uint16_t *b, int k, int k8)
{
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    a += (size_t)blockIdx.x * 16 * k;
    b += (size_t)blockIdx.x * 8 * k;
    c += blockIdx.x * 128;
    d += blockIdx.x * 128;
    float acc[4] = { c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1] };
    for (int i = 0; i < k; i += 16) {
        auto at = [&](const uint16_t *m, int row, int col) { return *(const uint32_t *)(m + row * k + i + col); };
        uint32_t ra[4] = { at(a, g, 2 * t), at(a, g + 8, 2 * t), at(a, g, 2 * t + 8), at(a, g + 8, 2 * t + 8) };
        uint32_t rb[2] = { at(b, g, 2 * t), at(b, g, 2 * t + 8) };
        if (k8) {
            mma_k8(acc, ra, rb[0]);
            mma_k8(acc, ra + 2, rb[1]);
        } else {
            mma_k16(acc, ra, rb);
        }
    }
    d[g * 8 + 2 * t] = acc[0];
    d[g * 8 + 2 * t + 1] = acc[1];
    d[(g + 8) * 8 + 2 * t] = acc[2];
    d[(g + 8) * 8 + 2 * t + 1] = acc[3];
}

/* ---- wgmma: the same sums for 64 rows and N columns, weights from registers, columns from shared memory ---- */

template <int N> static __device__ void wgmma(float *d, const uint32_t a[4], uint64_t b);
template <> __device__ void wgmma<8>(float *d, const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <> __device__ void wgmma<64>(float *d, const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
                 "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Shared memory of B, K-major without swizzle: core matrices of 8 columns x 16 bytes, the two halves of K side by side. */
template <int N> __global__ void wgmma_chain(float *d, const uint16_t *a, const uint16_t *b, int k)
{
    __shared__ alignas(128) uint16_t tile[N * 16];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float acc[N / 2];
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    uint64_t desc = (uint64_t)((uint32_t)__cvta_generic_to_shared(tile) >> 4) & 0x3fff;
    desc |= (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
    for (int i = 0; i < k; i += 16) {
        for (int e = threadIdx.x; e < N * 16; e += 128) {
            int n = e / 16, kk = e % 16;
            tile[n / 8 * 128 + kk / 8 * 64 + n % 8 * 8 + kk % 8] = b[n * k + i + kk];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        auto at = [&](int row, int col) { return *(const uint32_t *)(a + (warp * 16 + row) * k + i + col); };
        uint32_t ra[4] = { at(g, 2 * t), at(g + 8, 2 * t), at(g, 2 * t + 8), at(g + 8, 2 * t + 8) };
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        wgmma<N>(acc, ra, desc);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
    for (int j = 0; j < N / 8; j++)
        for (int e = 0; e < 4; e++) {
            int row = warp * 16 + g + e / 2 * 8, col = j * 8 + 2 * t + e % 2;
            d[row * N + col] = acc[j * 4 + e];
        }
}

/* ---- random problems ---- */

static uint64_t random_state = 1;
static uint32_t random_u32()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
static uint16_t random_bf16(int spread) /* exponents within `spread` of 1 */
{
    return (uint16_t)((random_u32() & 0x807f) | (127 - spread / 2 + (int)(random_u32() % (uint32_t)(spread + 1))) << 7);
}
static float widen(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

struct Problems {
    int n, k;
    std::vector<uint16_t> a, b;
    std::vector<float> c, d;
    Problems(int n_, int k_) : n(n_), k(k_), a((size_t)n_ * 16 * k_), b((size_t)n_ * 8 * k_), c(n_ * 128), d(n_ * 128) {}
    void fill(int spread, bool with_c)
    {
        for (auto &x : a) x = random_bf16(spread);
        for (auto &x : b) x = random_bf16(spread);
        for (auto &x : c) x = with_c ? widen(random_bf16(spread)) * (1 + random_u32() * 0x1p-32f) : 0;
    }
    void run(int k8 = 0)
    {
        uint16_t *da, *db;
        float *dc, *dd;
        CHECK_CUDA(cudaMalloc(&da, a.size() * 2));
        CHECK_CUDA(cudaMalloc(&db, b.size() * 2));
        CHECK_CUDA(cudaMalloc(&dc, c.size() * 4));
        CHECK_CUDA(cudaMalloc(&dd, d.size() * 4));
        CHECK_CUDA(cudaMemcpy(da, a.data(), a.size() * 2, cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaMemcpy(dc, c.data(), c.size() * 4, cudaMemcpyHostToDevice));
        mma_problems<<<n, 32>>>(dd, dc, da, db, k, k8);
        CHECK_CUDA(cudaMemcpy(d.data(), dd, d.size() * 4, cudaMemcpyDeviceToHost));
        cudaFree(da);
        cudaFree(db);
        cudaFree(dc);
        cudaFree(dd);
    }
};

static int differing(const std::vector<float> &x, const std::vector<float> &y)
{
    int n = 0;
    for (size_t i = 0; i < x.size(); i++) n += memcmp(&x[i], &y[i], 4) != 0;
    return n;
}

/* One column at each of 8 places, its neighbours garbage, infinities and NaN; one weight row at each of 16 places. */
static void measure_places()
{
    enum { K = 1024, CASES = 64 };
    int bad_columns = 0, bad_rows = 0;
    for (int i = 0; i < CASES; i++) {
        Problems p(1, K);
        p.fill(12, true);
        for (int n = 1; n < 8; n++) /* alone: the other columns are zero */
            memset(&p.b[n * K], 0, K * 2);
        for (int m = 0; m < 16; m++) p.c[m * 8] = 0;
        p.run();
        std::vector<float> want(16);
        for (int m = 0; m < 16; m++) want[m] = p.d[m * 8];
        for (int place = 0; place < 8; place++) {
            Problems q(1, K);
            q.fill(60, true);
            for (int e = 0; e < 8 * K; e += 37) q.b[e] = e % 2 ? 0x7f80 : 0x7fc0;
            memcpy(&q.b[place * K], &p.b[0], K * 2);
            q.a = p.a;
            for (int m = 0; m < 16; m++) q.c[m * 8 + place] = 0;
            q.run();
            for (int m = 0; m < 16; m++) bad_columns += memcmp(&q.d[m * 8 + place], &want[m], 4) != 0;
        }
        for (int place = 0; place < 16; place++) {
            Problems q(1, K);
            q.fill(60, true);
            q.b = p.b;
            memcpy(&q.a[place * K], &p.a[0], K * 2);
            q.c[place * 8] = 0;
            q.run();
            bad_rows += memcmp(&q.d[place * 8], &want[0], 4) != 0;
        }
    }
    printf("mma.sync m16n8k16, K = %d: outputs that depend on their column, its neighbours (garbage, inf, NaN) or padding: %d\n",
           K, bad_columns);
    printf("mma.sync m16n8k16, K = %d: outputs that depend on the row of the tile they come from: %d\n", K, bad_rows);
}

/* Sums as a unit that aligns `group` products and the accumulator to the largest exponent, cuts below `bits` fraction
 * bits, adds exactly, and cuts or rounds the result to float32. */
static float aligned_sum(float c, const uint16_t *a, const uint16_t *b, int n, int bits, bool nearest)
{
    double term[33];
    term[0] = c;
    for (int i = 0; i < n; i++) term[i + 1] = (double)widen(a[i]) * widen(b[i]);
    int top = -10000;
    for (int i = 0; i <= n; i++) {
        int e;
        if (term[i] == 0) continue;
        if (i == 0) {
            frexp(term[0], &e);
        } else { /* the product's exponent before normalisation: sum of the exponents */
            int ea, eb;
            frexp(widen(a[i - 1]), &ea);
            frexp(widen(b[i - 1]), &eb);
            e = ea + eb - 1;
        }
        top = e > top ? e : top;
    }
    double unit = ldexp(1.0, top - 1 - bits), sum = 0;
    for (int i = 0; i <= n; i++) sum += trunc(term[i] / unit);
    sum *= unit;
    if (nearest) return (float)sum;
    float f = (float)sum;
    if (fabs((double)f) > fabs(sum)) f = nextafterf(f, 0);
    return f;
}

static void measure_accumulator()
{
    enum { N = 512 };
    static const int groups[] = { 4, 8, 16 };
    Problems p(N, 16);
    p.fill(16, true);
    p.run();
    printf("accumulator of one m16n8k16, share of %d outputs that a model of the unit explains:\n", N * 128);
    for (int group : groups)
        for (int bits = 23; bits <= 27; bits++)
            for (int nearest = 0; nearest < 2; nearest++) {
                int same = 0;
                for (int i = 0; i < N; i++)
                    for (int m = 0; m < 16; m++)
                        for (int c = 0; c < 8; c++) {
                            float x = p.c[i * 128 + m * 8 + c];
                            for (int k = 0; k < 16; k += group)
                                x = aligned_sum(x, &p.a[(i * 16 + m) * 16 + k], &p.b[(i * 8 + c) * 16 + k], group, bits, nearest);
                            same += memcmp(&x, &p.d[i * 128 + m * 8 + c], 4) == 0;
                        }
                double share = (double)same / (N * 128);
                if (share > 0.5) printf("  groups of %2d, %d bits kept, %s: %.4f\n", group, bits, nearest ? "rounded" : "cut", share);
            }
    Problems q = p;
    q.run(1);
    printf("two m16n8k8 instead of one m16n8k16: %d of %d outputs differ\n", differing(p.d, q.d), N * 128);
    for (int width : { 2, 8, 16 }) { /* k reversed inside pieces of this width */
        q = p;
        for (int r = 0; r < N * 16; r++)
            for (int k = 0; k < 16; k++) q.a[r * 16 + k] = p.a[r * 16 + k / width * width + width - 1 - k % width];
        for (int r = 0; r < N * 8; r++)
            for (int k = 0; k < 16; k++) q.b[r * 16 + k] = p.b[r * 16 + k / width * width + width - 1 - k % width];
        q.run();
        printf("k reversed inside pieces of %2d: %d of %d outputs differ\n", width, differing(p.d, q.d), N * 128);
    }
}

static void measure_wgmma()
{
    enum { K = 4096 };
    for (int spread : { 4, 16 }) {
        Problems p(4 * 8, K); /* row tiles x column tiles of 64 x 64 */
        std::vector<uint16_t> a(64 * K), b(64 * K);
        for (auto &x : a) x = random_bf16(spread);
        for (auto &x : b) x = random_bf16(spread);
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 8; c++) {
                memcpy(&p.a[(size_t)(r * 8 + c) * 16 * K], &a[(size_t)r * 16 * K], 16 * K * 2);
                memcpy(&p.b[(size_t)(r * 8 + c) * 8 * K], &b[(size_t)c * 8 * K], 8 * K * 2);
            }
        p.run();
        uint16_t *da, *db;
        float *dd;
        CHECK_CUDA(cudaMalloc(&da, a.size() * 2));
        CHECK_CUDA(cudaMalloc(&db, b.size() * 2));
        CHECK_CUDA(cudaMalloc(&dd, 64 * 64 * 4));
        CHECK_CUDA(cudaMemcpy(da, a.data(), a.size() * 2, cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice));
        std::vector<float> wide(64 * 64), narrow(64 * 8);
        wgmma_chain<64><<<1, 128>>>(dd, da, db, K);
        CHECK_CUDA(cudaMemcpy(wide.data(), dd, wide.size() * 4, cudaMemcpyDeviceToHost));
        wgmma_chain<8><<<1, 128>>>(dd, da, db, K);
        CHECK_CUDA(cudaMemcpy(narrow.data(), dd, narrow.size() * 4, cudaMemcpyDeviceToHost));
        int d64 = 0, d8 = 0, between = 0;
        double worst = 0, largest = 0;
        for (int m = 0; m < 64; m++)
            for (int c = 0; c < 64; c++) {
                float want = p.d[(size_t)((m / 16) * 8 + c / 8) * 128 + m % 16 * 8 + c % 8];
                d64 += memcmp(&want, &wide[m * 64 + c], 4) != 0;
                worst = fmax(worst, fabs(want - wide[m * 64 + c]));
                largest = fmax(largest, fabs(want));
                if (c >= 8) continue;
                d8 += memcmp(&want, &narrow[m * 8 + c], 4) != 0;
                between += memcmp(&wide[m * 64 + c], &narrow[m * 8 + c], 4) != 0;
            }
        printf("K = %d, spread of exponents %d: wgmma n64 against mma.sync chain: %d of 4096 differ (worst %.3g of %.3g); "
               "n8: %d of 512; n8 against n64: %d of 512\n", K, spread, d64, worst, largest, d8, between);
        cudaFree(da);
        cudaFree(db);
        cudaFree(dd);
    }
}

/* ---- rates and launches ---- */

__global__ void mma_rate(float *sink, int n)
{
    float acc[8][4] = {};
    uint32_t a[4] = { threadIdx.x, threadIdx.x * 3, threadIdx.x * 5, 7 }, b[2] = { threadIdx.x * 11, 13 };
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) mma_k16(acc[j], a, b);
    float sum = 0;
    for (int j = 0; j < 8; j++)
        for (int e = 0; e < 4; e++) sum += acc[j][e];
    if (sum == 1.2345f) *sink = sum;
}

__global__ void nothing(int *p)
{
    if (p && threadIdx.x == 12345) *p = 1;
}

static double now_us()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void measure_launches(int n_sm)
{
    enum { N = 1000 };
    cudaStream_t st;
    CHECK_CUDA(cudaStreamCreate(&st));
    for (int blocks : { 1, n_sm }) {
        nothing<<<blocks, 256, 0, st>>>(nullptr);
        CHECK_CUDA(cudaStreamSynchronize(st));
        double t = now_us();
        for (int i = 0; i < N; i++) nothing<<<blocks, 256, 0, st>>>(nullptr);
        double queued = now_us() - t;
        CHECK_CUDA(cudaStreamSynchronize(st));
        double done = now_us() - t;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK_CUDA(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < N; i++) nothing<<<blocks, 256, 0, st>>>(nullptr);
        CHECK_CUDA(cudaStreamEndCapture(st, &graph));
        double t0 = now_us();
        CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        double instantiate = now_us() - t0;
        CHECK_CUDA(cudaGraphLaunch(exec, st));
        CHECK_CUDA(cudaStreamSynchronize(st));
        t = now_us();
        CHECK_CUDA(cudaGraphLaunch(exec, st));
        double launched = now_us() - t;
        CHECK_CUDA(cudaStreamSynchronize(st));
        double replay = now_us() - t;
        printf("launch, %3d blocks: %.2f us to queue, %.2f us a kernel; graph of %d: %.2f us a kernel, %.0f us to launch, %.0f us "
               "to instantiate\n", blocks, queued / N, done / N, N, replay / N, launched, instantiate);
    }
    char *host, *dev;
    CHECK_CUDA(cudaMallocHost(&host, 1 << 20));
    CHECK_CUDA(cudaMalloc(&dev, 1 << 20));
    for (size_t bytes : { 4096, 65536, 1 << 20 }) {
        double t = now_us();
        for (int i = 0; i < 100; i++) {
            cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice, st);
            cudaStreamSynchronize(st);
        }
        double up = now_us() - t;
        t = now_us();
        for (int i = 0; i < 100; i++) {
            cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, st);
            cudaStreamSynchronize(st);
        }
        printf("copy of %7zu bytes and waiting: %.1f us up, %.1f us down\n", bytes, up / 100, (now_us() - t) / 100);
    }
    float *sink;
    CHECK_CUDA(cudaMalloc(&sink, 4));
    for (int warps : { 4, 8, 16 }) {
        float ms = median_ms(5, [&] { mma_rate<<<n_sm * 2, warps * 32>>>(sink, 4096); });
        printf("mma.sync bf16 rate, %d warps: %.0f TFLOP/s\n", 2 * warps, n_sm * 2.0 * warps * 4096 * 8 * 4096 / ms * 1e-9);
    }
}

int main()
{
    cudaDeviceProp prop;
    CHECK_CUDA(cudaGetDeviceProperties(&prop, 0));
    printf("%s, sm_%d%d, %d multiprocessors, L2 %d MB, %zu MB\n", prop.name, prop.major, prop.minor, prop.multiProcessorCount,
           prop.l2CacheSize >> 20, prop.totalGlobalMem >> 20);
    measure_memory(prop.multiProcessorCount);
    measure_places();
    measure_accumulator();
    if (prop.major == 9) measure_wgmma();
    measure_launches(prop.multiProcessorCount);
    return 0;
}
