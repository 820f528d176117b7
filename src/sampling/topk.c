/* Top-k by a heap of the k best so far, the worst of them at the root.
 *
 * Places come in ascending order, so an element that only equals the root ranks behind it and is passed over: one
 * comparison against the root decides, for a block of them at a time. The heap becomes the ordered list by taking
 * its root away again and again. */
#include "sampling/topk.h"

#include "sampling/row.h"

enum { BLOCK = 64 };

typedef struct Heap {
    int32_t  n;
    int32_t *id;
    float   *value;
} Heap;

static inline bool ranks_behind(const Heap *h, int32_t a, int32_t b)
{
    return h->value[a] < h->value[b] || (h->value[a] == h->value[b] && h->id[a] > h->id[b]);
}

static void swap(Heap *h, int32_t a, int32_t b)
{
    int32_t id = h->id[a];
    float value = h->value[a];
    h->id[a] = h->id[b];
    h->value[a] = h->value[b];
    h->id[b] = id;
    h->value[b] = value;
}

static void sift_down(Heap *h)
{
    for (int32_t i = 0;;) {
        int32_t child = 2 * i + 1;
        if (child >= h->n) return;
        if (child + 1 < h->n && ranks_behind(h, child + 1, child)) child++;
        if (!ranks_behind(h, child, i)) return;
        swap(h, i, child);
        i = child;
    }
}

static void push(Heap *h, int32_t id, float value)
{
    int32_t i = h->n++;
    h->id[i] = id;
    h->value[i] = value;
    for (; i > 0 && ranks_behind(h, i, (i - 1) / 2); i = (i - 1) / 2) swap(h, i, (i - 1) / 2);
}

static void offer(Heap *h, int32_t k, int32_t id, float value)
{
    if (value == -INFINITY) return;
    if (h->n < k) {
        push(h, id, value);
    } else if (value > h->value[0]) {
        h->id[0] = id;
        h->value[0] = value;
        sift_down(h);
    }
}

int32_t topk_list(const float *x, int32_t n, int32_t k, int32_t *id, float *value)
{
    Heap h = { 0, id, value };
    if (k <= 0) return 0;
    for (int32_t first = 0; first < n; first += BLOCK) {
        int32_t count = n - first < BLOCK ? n - first : BLOCK;
        if (h.n == k && row_max(x + first, count) <= value[0]) continue;
        for (int32_t i = first; i < first + count; i++) offer(&h, k, i, x[i]);
    }

    int32_t taken = h.n;
    while (h.n > 1) {
        swap(&h, 0, --h.n);
        sift_down(&h);
    }
    return taken;
}
