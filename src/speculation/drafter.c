/* What all drafters share. */
#include "speculation/drafter.h"

void drafter_close(Drafter *d)
{
    if (d) d->close(d);
}
