/* The walk that decides what a pass has gained.
 *
 * From the anchor, go to the child that bears the token chosen here, until there is none: its token is then the
 * bonus. Each token of the walk is the one that plain decoding chooses after the same prefix, so a draft can change
 * how many tokens a pass yields and nothing else. Rows that the walk does not reach are never drawn for. */
#include "speculation/verify.h"

void verify_walk(const Tree *tree,
                 void (*choose_at)(void *ctx, int32_t node, const int32_t *path, int32_t depth, Choice *out),
                 bool (*stop_at)(void *ctx, int32_t token, int32_t depth), void *ctx, Walk *walk)
{
    walk->n_path = 0;
    walk->failed = false;
    for (int32_t node = 0, depth = 0; node >= 0; depth++) {
        CHECK(depth < MAX_DEPTH);
        Choice *chosen = &walk->chosen[depth];
        walk->path[walk->n_path++] = node;
        choose_at(ctx, node, walk->path, depth, chosen);
        if (!chosen->is_finite) {
            walk->failed = true;
            return;
        }
        if (stop_at && stop_at(ctx, chosen->token, depth)) return;
        node = tree_child(tree, node, chosen->token);
    }
}
