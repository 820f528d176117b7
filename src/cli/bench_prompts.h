/* Prompts of `tandem bench` by content class. None is in the text that the bundled models were trained on. */
#pragma once

enum { BENCH_CLASSES = 5, BENCH_PROMPTS = 4 };
extern const char *const bench_class_names[BENCH_CLASSES];
extern const char *const bench_prompts[BENCH_CLASSES][BENCH_PROMPTS];
