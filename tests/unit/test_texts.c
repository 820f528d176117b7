/* Belief about kinds of text: what one drafter shows tells what to expect of another, and nothing is ever quite certain. */
#include "speculation/texts.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { FAMILIES = 2, LOW = 2, HIGH = 10 };

/* A round that is likely at levels near `level`. */
static void shown(int level, double seen[HIT_LEVELS])
{
    for (int k = 0; k < HIT_LEVELS; k++) seen[k] = fmax(exp(-0.5 * (k - level) * (k - level)), 1e-4);
}

static double mean_level(const TextBelief *b, int32_t family)
{
    double p[HIT_LEVELS], sum = 0, mean = 0;
    texts_levels(b, family, p);
    for (int k = 0; k < HIT_LEVELS; k++) {
        sum += p[k];
        mean += k * p[k];
    }
    assert_true(fabs(sum - 1) < 1e-4);
    return mean;
}

/* Rounds of both families in turn, of 4 tokens. */
static void read_text(TextLaw *law, TextBelief *b, const int levels[FAMILIES], int32_t n_rounds)
{
    double seen[HIT_LEVELS];
    for (int32_t i = 0; i < n_rounds; i++) {
        shown(levels[i % FAMILIES], seen);
        texts_learn(law, b, i % FAMILIES, seen, 4);
    }
}

/* Where one hits the other does not: after 20 requests of both kinds a few rounds of the one tell about the other. */
static void test_one_drafter_tells_of_another(void **state)
{
    static const int kinds[2][FAMILIES] = { { HIGH, LOW }, { LOW, HIGH } };
    static TextLaw law;
    static TextBelief b;
    texts_init(&law, FAMILIES);
    for (int request = 0; request < 20; request++) {
        texts_begin(&law, &b);
        read_text(&law, &b, kinds[request % 2], 40);
        texts_end(&law, &b);
    }
    for (int kind = 0; kind < 2; kind++) {
        double seen[HIT_LEVELS];
        texts_begin(&law, &b);
        shown(kinds[kind][0], seen);
        for (int i = 0; i < 5; i++) texts_learn(&law, &b, 0, seen, 4);
        assert_true(fabs(mean_level(&b, 0) - kinds[kind][0]) < 1.5);
        assert_true(fabs(mean_level(&b, 1) - kinds[kind][1]) < 2);
    }
}

/* Harder for one, and nothing known of such text: likely harder for the other. */
static void test_new_text_moves_all(void **state)
{
    static const int usual[FAMILIES] = { 9, 9 };
    static TextLaw law;
    static TextBelief b;
    double seen[HIT_LEVELS];
    texts_init(&law, FAMILIES);
    for (int request = 0; request < 20; request++) {
        texts_begin(&law, &b);
        read_text(&law, &b, usual, 40);
    }
    double before = mean_level(&b, 1);
    shown(5, seen);
    for (int i = 0; i < 20; i++) texts_learn(&law, &b, 0, seen, 4);
    assert_true(mean_level(&b, 1) < before - 1);
}

/* A change is called one at once where the round cannot be an accident, and an accident is not. */
static void test_change_is_seen(void **state)
{
    static const int usual[FAMILIES] = { HIGH, HIGH };
    static TextLaw law;
    static TextBelief b;
    double seen[HIT_LEVELS];
    texts_init(&law, FAMILIES);
    texts_begin(&law, &b);
    read_text(&law, &b, usual, 40);
    shown(HIGH - 1, seen);
    assert_true(texts_learn(&law, &b, 0, seen, 4) < 0.3);
    shown(0, seen);
    assert_true(texts_learn(&law, &b, 0, seen, 4) > 0.5);
}

/* Any rounds at all leave chances that add up to one, and a sequence of which nothing was seen stays as it began. */
static void test_chances_stay_chances(void **state)
{
    static TextLaw law;
    static TextBelief b;
    Random r = { 7 };
    texts_init(&law, FAMILIES);
    texts_end(&law, &b);
    texts_begin(&law, &b);
    double first = mean_level(&b, 0), seen[HIT_LEVELS];
    for (int i = 0; i < 100; i++) assert_true(texts_learn(&law, &b, -1, NULL, 1) == 0);
    assert_true(fabs(mean_level(&b, 0) - first) < 0.5);
    for (int i = 0; i < 20000; i++) {
        int32_t family = random_below(&r, FAMILIES + 1) - 1;
        shown(random_below(&r, HIT_LEVELS), seen);
        double change = texts_learn(&law, &b, family, seen, 1 + random_below(&r, 16));
        assert_true(change >= 0 && change <= 1);
        assert_in_range(mean_level(&b, i % FAMILIES), 0, HIT_LEVELS - 1);
        if (i % 50 == 0) texts_begin(&law, &b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_drafter_tells_of_another),
        cmocka_unit_test(test_new_text_moves_all),
        cmocka_unit_test(test_change_is_seen),
        cmocka_unit_test(test_chances_stay_chances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
