/* The commands, and what they share. Each returns OK or fills err; main turns the Status into an exit code. */
#pragma once

#include "cli/options.h"
#include "engine/stack.h"

Status command_run(const Options *o, Error *err);
Status command_chat(const Options *o, Error *err);
Status command_serve(const Options *o, Error *err);
Status command_verify(const Options *o, Error *err);
Status command_logits(const Options *o, Error *err);
Status command_tokenize(const Options *o, Error *err);
Status command_bench(const Options *o, Error *err);
Status command_plan(const Options *o, Error *err);
Status command_perplexity(const Options *o, Error *err);

/* Exit code of a Status: 0, 1, 2 usage, 3 plan, 4 lost. */
int command_exit_code(Status s);

/* The flags that say how a model is opened, checked. */
Status command_stack_options(const Options *o, StackOptions *out, Error *err);

/* Opens the device that options ask for, to plan by what it can give, and closes it again. */
Status command_ask_device(StackOptions *options, Error *err);

/* To a plan that does not fit (s, err as stack_plan() and stack_open() leave them) adds that plain decoding would, if so:
 * who never asked for drafts should not have to guess what takes the memory. Returns s. */
Status command_explain_plan(const StackOptions *options, Status s, Error *err);

/* The model's sampling defaults with the flags on top, checked. */
Status command_sample_params(const Options *o, const Stack *s, SampleParams *out, Error *err);

/* --seed, or a fresh one from the system. */
uint64_t command_seed(const Options *o);

/* Set by the first Ctrl-C once command_catch_interrupt() was called; the second one ends the process. */
void command_catch_interrupt(void);
bool command_interrupted(void);
void command_clear_interrupt(void);

/* One user message (and a system message, may be NULL) through the chat template. Appends to out. */
Status command_render(const Stack *s, const char *system, const char *user, Buf *out, Error *err);
