/* Queues: order, bounds, closing; many writers and readers lose and double nothing. */
#include "base/memory.h"
#include "base/queue.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

static Queue *open_queue(int capacity)
{
    Queue *q = NULL;
    Error err = { 0 };
    assert_int_equal(queue_open(&q, capacity, &err), OK);
    return q;
}

static void first_in_first_out(void **state)
{
    static int items[20];
    Queue *q = open_queue(5);
    int pushed = 0, popped = 0;
    while (popped < 20) { /* three in, two out: the ring turns while it is partly filled */
        for (int i = 0; i < 3 && pushed < 20; i++) {
            if (queue_push(q, &items[pushed]) == OK) pushed++;
        }
        for (int i = 0; i < 2; i++) {
            assert_ptr_equal(queue_pop(q, 0), popped < pushed ? &items[popped] : NULL);
            popped++;
        }
        assert_int_equal(queue_count(q), pushed - popped);
    }
    queue_free(q);
    queue_free(NULL);
}

static void full_and_empty(void **state)
{
    int item;
    Queue *q = open_queue(2);
    assert_null(queue_pop(q, 0));
    assert_null(queue_pop(q, 5));
    assert_int_equal(queue_push(q, &item), OK);
    assert_int_equal(queue_push(q, &item), OK);
    assert_int_equal(queue_push(q, &item), ERR_FULL);
    assert_int_equal(queue_count(q), 2);
    assert_ptr_equal(queue_pop(q, -1), &item);
    assert_int_equal(queue_push(q, &item), OK);
    queue_free(q);
}

static void closed_queues_drain(void **state)
{
    int item;
    Queue *q = open_queue(4);
    assert_int_equal(queue_push(q, &item), OK);
    queue_close(q);
    queue_close(q);
    assert_int_equal(queue_push(q, &item), ERR_CANCELLED);
    assert_ptr_equal(queue_pop(q, -1), &item);
    assert_null(queue_pop(q, -1)); /* does not wait for what cannot come */
    assert_null(queue_pop(q, 1000));
    queue_free(q);
}

static void *pop_one(void *q)
{
    return queue_pop(q, -1);
}

static void close_wakes_all(void **state)
{
    Queue *q = open_queue(1);
    pthread_t threads[4];
    for (int i = 0; i < COUNT(threads); i++) assert_int_equal(pthread_create(&threads[i], NULL, pop_one, q), 0);
    queue_close(q);
    for (int i = 0; i < COUNT(threads); i++) {
        void *got = q;
        pthread_join(threads[i], &got);
        assert_null(got);
    }
    queue_free(q);
}

static void push_wakes_one(void **state)
{
    int item, n_got = 0;
    Queue *q = open_queue(1);
    pthread_t threads[3];
    for (int i = 0; i < COUNT(threads); i++) assert_int_equal(pthread_create(&threads[i], NULL, pop_one, q), 0);
    assert_int_equal(queue_push(q, &item), OK);
    while (queue_count(q) > 0) sched_yield();
    queue_close(q);
    for (int i = 0; i < COUNT(threads); i++) {
        void *got;
        pthread_join(threads[i], &got);
        n_got += got == &item;
    }
    assert_int_equal(n_got, 1);
    queue_free(q);
}

enum { N_THREADS = 4, N_ITEMS = 20000 };
static unsigned char seen[N_THREADS * N_ITEMS];

typedef struct Worker {
    Queue *q;
    int    first; /* writers: of their items */
    long   n;
} Worker;

static void *write_items(void *arg)
{
    Worker *w = arg;
    for (int i = 0; i < N_ITEMS; i++) {
        while (queue_push(w->q, &seen[w->first + i]) == ERR_FULL) sched_yield();
    }
    return NULL;
}

static void *read_items(void *arg)
{
    Worker *w = arg;
    for (unsigned char *item; (item = queue_pop(w->q, w->n % 2 ? -1 : 1000)) != NULL; w->n++) ++*item;
    return NULL;
}

static void nothing_is_lost_or_doubled(void **state)
{
    Queue *q = open_queue(7);
    pthread_t writers[N_THREADS], readers[N_THREADS];
    Worker w[N_THREADS], r[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        w[i] = (Worker){ q, i * N_ITEMS, 0 };
        r[i] = (Worker){ q, 0, 0 };
        assert_int_equal(pthread_create(&writers[i], NULL, write_items, &w[i]), 0);
        assert_int_equal(pthread_create(&readers[i], NULL, read_items, &r[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(writers[i], NULL);
    queue_close(q);
    for (int i = 0; i < N_THREADS; i++) pthread_join(readers[i], NULL);
    for (int i = 0; i < N_THREADS * N_ITEMS; i++) assert_int_equal(seen[i], 1);
    queue_free(q);
}

static void no_memory(void **state)
{
    Queue *q = NULL;
    Error err = { 0 };
    mem_fail_at(1);
    assert_int_equal(queue_open(&q, 10, &err), ERR_NOMEM);
    assert_int_equal(err.status, ERR_NOMEM);
    assert_null(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_in_first_out), cmocka_unit_test(full_and_empty),
        cmocka_unit_test(closed_queues_drain), cmocka_unit_test(close_wakes_all),
        cmocka_unit_test(push_wakes_one),     cmocka_unit_test(nothing_is_lost_or_doubled),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
