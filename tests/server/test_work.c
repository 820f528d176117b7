/* Front workers: one turn at a time for an item, no wake-up lost, posts to items that are over do nothing, worker 0 left
 * alone by new items. */
#include "server/work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { N_ITEMS = 16, N_POSTERS = 3, N_POSTS = 4000 };

typedef struct Owner {
    WorkItem   item;
    atomic_int inside, n_turns, n_over, n_wanted; /* n_wanted: what posters have left for it */
    atomic_int n_taken;
} Owner;

typedef struct Rig {
    Work      *work;
    Owner      owners[N_ITEMS];
    atomic_int broken; /* two turns at once, or one after the end */
    int        end_at; /* taken by an item before it is over; 0 = never */
} Rig;

static bool take_turn(void *ctx, void *owner, int worker)
{
    Rig *rig = ctx;
    Owner *o = owner;
    if (atomic_fetch_add(&o->inside, 1) > 0 || atomic_load(&o->n_over) > 0) atomic_store(&rig->broken, 1);
    atomic_fetch_add(&o->n_turns, 1);
    atomic_store(&o->n_taken, atomic_load(&o->n_wanted));
    atomic_fetch_sub(&o->inside, 1);
    return rig->end_at > 0 && atomic_load(&o->n_taken) >= rig->end_at;
}

static void after_turn(void *ctx, void *owner)
{
    atomic_fetch_add(&((Owner *)owner)->n_over, 1);
}

static void rig_open(Rig *rig, int n_workers)
{
    Error err = { .status = OK };
    WorkHooks hooks = { .turn = take_turn, .over = after_turn, .ctx = rig };
    assert_int_equal(work_open(&rig->work, n_workers, &hooks, &err), OK);
    for (int i = 0; i < N_ITEMS; i++) {
        rig->owners[i].item.owner = &rig->owners[i];
        work_submit(rig->work, &rig->owners[i].item);
    }
}

static void *poster_main(void *arg)
{
    Rig *rig = arg;
    for (int i = 0; i < N_POSTS; i++) {
        Owner *o = &rig->owners[i % N_ITEMS];
        atomic_fetch_add(&o->n_wanted, 1);
        work_post(rig->work, &o->item);
    }
    return NULL;
}

static void post_from_threads(Rig *rig)
{
    pthread_t threads[N_POSTERS];
    for (int i = 0; i < N_POSTERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, poster_main, rig), 0);
    for (int i = 0; i < N_POSTERS; i++) pthread_join(threads[i], NULL);
}

static bool eventually(atomic_int *value, int want)
{
    for (int i = 0; i < 20000 && atomic_load(value) != want; i++) usleep(1000);
    return atomic_load(value) == want;
}

static void test_no_wake_up_is_lost(void **state)
{
    static Rig rig;
    rig_open(&rig, 4);
    post_from_threads(&rig);
    for (int i = 0; i < N_ITEMS; i++) assert_true(eventually(&rig.owners[i].n_taken, N_POSTERS * N_POSTS / N_ITEMS));
    work_close(rig.work);
    assert_int_equal(atomic_load(&rig.broken), 0);
}

static void test_an_item_that_is_over_gets_no_turn(void **state)
{
    static Rig rig = { .end_at = 100 };
    rig_open(&rig, 4);
    post_from_threads(&rig);
    for (int i = 0; i < N_ITEMS; i++) assert_true(eventually(&rig.owners[i].n_over, 1));
    int before = atomic_load(&rig.owners[0].n_turns);
    work_post(rig.work, &rig.owners[0].item);
    usleep(20000);
    assert_int_equal(atomic_load(&rig.owners[0].n_turns), before);
    work_close(rig.work);
    assert_int_equal(atomic_load(&rig.broken), 0);
}

/* ---- a slow new item in each place that takes them: posted ones still get their turns ---- */

typedef struct Slow {
    Work       *work;
    WorkItem    slow[2], quick;
    atomic_int  n_slow, n_quick;
    atomic_bool let_go;
} Slow;

static bool slow_turn(void *ctx, void *owner, int worker)
{
    Slow *s = ctx;
    if (owner == &s->quick) {
        atomic_fetch_add(&s->n_quick, 1);
        return false;
    }
    atomic_fetch_add(&s->n_slow, 1);
    while (!atomic_load(&s->let_go)) usleep(1000);
    return true;
}

static void ignore(void *ctx, void *owner)
{
}

static void test_new_items_leave_a_worker_free(void **state)
{
    static Slow s;
    Error err = { .status = OK };
    WorkHooks hooks = { .turn = slow_turn, .over = ignore, .ctx = &s };
    assert_int_equal(work_open(&s.work, 3, &hooks, &err), OK);
    s.quick.owner = &s.quick;
    work_submit(s.work, &s.quick);
    assert_true(eventually(&s.n_quick, 1));
    for (int i = 0; i < 2; i++) {
        s.slow[i].owner = &s.slow[i];
        work_submit(s.work, &s.slow[i]);
    }
    assert_true(eventually(&s.n_slow, 2)); /* both workers for new items are busy now */
    work_post(s.work, &s.quick);
    assert_true(eventually(&s.n_quick, 2));
    atomic_store(&s.let_go, true);
    work_close(s.work);
}

static void test_posting_after_the_stop_does_no_harm(void **state)
{
    static Rig rig;
    rig_open(&rig, 2);
    work_stop(rig.work);
    for (int i = 0; i < N_ITEMS; i++) work_post(rig.work, &rig.owners[i].item);
    work_stop(rig.work);
    work_close(rig.work);
    work_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_wake_up_is_lost),
        cmocka_unit_test(test_an_item_that_is_over_gets_no_turn),
        cmocka_unit_test(test_new_items_leave_a_worker_free),
        cmocka_unit_test(test_posting_after_the_stop_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
