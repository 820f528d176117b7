/* Order of a tree's rows through a recurrent state (walk.h), without recursion: subtree sizes bottom up give
 * every node the place of its block in the depth-first order. */
#include "backend/cpu/walk.h"

#include "backend/cpu/kv.h"
#include "base/error.h"

/* Of one row, by its number within the sequence. */
typedef struct Node {
    int32_t size;     /* rows of its subtree */
    int32_t heaviest; /* child with the largest subtree; -1 = none */
    int32_t place;    /* in the walk */
    int32_t next;     /* place of its next light child */
} Node;

size_t walk_bytes(int32_t n_rows)
{
    return (size_t)n_rows * (sizeof(WalkStep) + sizeof(Node));
}

static int32_t parent_of(const Batch *batch, const BatchSeq *seq, int32_t i)
{
    int32_t parent = batch_parent(batch, seq, seq->first_row + i);
    CHECK(parent < seq->first_row + i && (parent < 0 || parent >= seq->first_row));
    return parent < 0 ? -1 : parent - seq->first_row;
}

static void measure(Node *node, const Batch *batch, const BatchSeq *seq)
{
    for (int32_t i = 0; i < seq->n_rows; i++) node[i] = (Node){ .size = 1, .heaviest = -1 };
    for (int32_t i = seq->n_rows - 1; i >= 0; i--) {
        int32_t p = parent_of(batch, seq, i);
        if (p < 0) continue;
        node[p].size += node[i].size;
        if (node[p].heaviest < 0 || node[i].size >= node[node[p].heaviest].size) node[p].heaviest = i;
    }
}

const WalkStep *walk_plan(void *memory, const Batch *batch, const BatchSeq *seq)
{
    WalkStep *step = memory;
    Node *node = (Node *)(step + seq->n_rows);
    int32_t next_root = 0;
    measure(node, batch, seq);
    for (int32_t i = 0; i < seq->n_rows; i++) {
        int32_t p = parent_of(batch, seq, i), from = WALK_COMMITTED, to = 0;
        if (p < 0) {
            node[i].place = next_root;
            next_root += node[i].size;
        } else if (i == node[p].heaviest) {
            node[i].place = node[p].place + node[p].size - node[i].size;
            from = to = step[node[p].place].to;
        } else {
            node[i].place = node[p].next;
            node[p].next += node[i].size;
            from = step[node[p].place].to;
            to = from + 1;
        }
        node[i].next = node[i].place + 1;
        CHECK(to < WALK_MAX_SLOTS);
        step[node[i].place] = (WalkStep){ seq->first_row + i, from, to };
    }
    return step;
}
