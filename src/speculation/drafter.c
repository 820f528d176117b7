/* What all drafters share. */
#include "speculation/drafter.h"

void drafter_close(Drafter *d)
{
    if (d) d->close(d);
}

DrafterNeeds drafter_needs(const Drafter *d)
{
    DrafterNeeds needs = { 0 };
    if (!d) return needs;
    needs.n_groups = d->groups(d, needs.groups);
    needs.n_taps = d->n_taps;
    needs.wants_last_hidden = d->wants_last_hidden;
    return needs;
}

int32_t drafter_methods(const Drafter *d, DraftMethod out[MAX_METHODS])
{
    CHECK(d->n_methods <= MAX_METHODS);
    out[0] = (DraftMethod){ .name = d->name, .is_tree = true, .max_nodes = TREE_MAX_NODES, .max_depth = MAX_DEPTH - 1 };
    for (int32_t m = 0; m < d->n_methods; m++) out[m] = d->methods[m];
    return d->n_methods ? d->n_methods : 1;
}
