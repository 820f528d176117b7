/* wgmma m64nNk16, bf16, for sm_90a alone: 64 numbers of one side from registers (or shared memory), N of the other from shared memory.
 *
 * A warp of the group holds 16 of the 64 as mma.sync m16n8k16 would; d[4 j + e] is number g + e / 2 * 8 against number
 * 8 j + 2 t + e % 2 of the N (g = lane / 4, t = lane % 4). Shared memory is as the copy engine leaves it with a swizzle of 128
 * bytes: lines of 64 values, eight of them 1024 bytes. Inputs of a product lie along lines, or (`turned`) across them. */
#pragma once

#include "backend/cuda/barriers.h"

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Descriptor of lines at a shared address: groups of 8 lines 1024 bytes apart. Further inputs of the lines: + 2 a product. */
static __device__ __forceinline__ uint64_t wgmma_rows(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
/* The same where a product takes 16 lines: 64 values of the N lie along them, the next 64 `apart` bytes further. */
static __device__ __forceinline__ uint64_t wgmma_turned(uint32_t address, uint32_t apart)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(apart >> 4) << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

template <int N> struct Wgmma;

#define SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define SUMS_8(d, i) SUMS_4(d, i), SUMS_4(d, (i) + 4)
#define SUMS_16(d, i) SUMS_8(d, i), SUMS_8(d, (i) + 8)
#define SUMS_32(d, i) SUMS_16(d, i), SUMS_16(d, (i) + 16)
#define SUMS_64(d, i) SUMS_32(d, i), SUMS_32(d, (i) + 32)
#define SUMS_128(d, i) SUMS_64(d, i), SUMS_64(d, (i) + 64)
#define NAMES_4 "%0,%1,%2,%3"
#define NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_128 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

template <> struct Wgmma<8> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {" NAMES_4 "}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
                     : SUMS_4(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
};
template <> struct Wgmma<16> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NAMES_8 "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
                     : SUMS_8(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
};
template <> struct Wgmma<32> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES_16 "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                     : SUMS_16(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
};
template <> struct Wgmma<64> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                     : SUMS_32(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
    static __device__ __forceinline__ void run_turned(float *d, uint4 a, uint64_t lines)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                     : SUMS_32(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(lines));
    }
};
template <> struct Wgmma<128> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                     : SUMS_64(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
    static __device__ __forceinline__ void run_turned(float *d, uint4 a, uint64_t lines)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                     : SUMS_64(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(lines));
    }
    static __device__ __forceinline__ void run_shared(float *d, uint64_t a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, 1, 1, 1, 0, 0;"
                     : SUMS_64(d, 0) : "l"(a), "l"(rows));
    }
};
template <> struct Wgmma<256> {
    static __device__ __forceinline__ void run(float *d, uint4 a, uint64_t rows)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NAMES_128 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
                     : SUMS_128(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows));
    }
};
