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
