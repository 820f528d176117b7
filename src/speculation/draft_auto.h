/* Several drafters as one: their methods one behind the other, each drafter a family of its own. Which of them drafts is
 * decided elsewhere, job by job (speculation/controller.h, or the request); here jobs only find their way. */
#pragma once

#include "speculation/drafter.h"

enum { AUTO_MAX_CHILDREN = 4 };

/* children: at most MAX_METHODS methods and MAX_GROUPS groups in all; handed over on success. Two of them that want
 * features share the batch's columns. */
Status drafter_open_auto(Drafter **out, Drafter *const *children, int n, Error *err);
