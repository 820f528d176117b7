/* Running a parsed template: one Interp a render, for the folder's jinja_*.c.
 *
 * Whatever goes wrong sets `failed` and the Error once; everything after that still runs but does nothing, and loops
 * look at `failed`. So a step that needs two values reads as two lines, without a check between them.
 *
 * Bounded in four ways, because template and conversation are input: steps (one a node, and for work on long values one
 * per kilobyte or sixteen items), nesting (the C stack), memory (the arena), output. */
#pragma once

#include "text/jinja_ast_impl.h"
#include "text/unicode_impl.h"

#include <jansson.h>

enum {
    MAX_RENDER_STEPS = 4000000,
    MAX_RENDER_NESTING = 400, /* of nodes and macros being run, and of values being walked; some 300 KB of stack */
    MAX_RENDER_MEMORY = 256 << 20,
    MAX_RENDER_BYTES = 8 << 20,
    MAX_PARAMETERS = 4,
};

typedef struct Binding { /* a name that is local to a loop or macro */
    int   symbol;
    Value value;
} Binding;

typedef struct Interp {
    const Template *t;
    Arena           arena;
    Value          *globals; /* [t->n_names]: the context, and what the template sets outside loops and macros */
    Binding        *locals;  /* a stack: innermost scope last */
    int             n_locals, local_capacity;
    int             scope_base; /* where the innermost scope begins */
    int             frame_base; /* where the innermost macro begins; nothing below can be seen */
    int             n_scopes;   /* 0: names are set in globals */
    int64_t         steps;
    int             nesting;
    int             line;
    Buf            *out;
    bool            failed;
    Status          status; /* why */
    Error          *err;
} Interp;

typedef struct CallArguments { /* evaluated */
    int          n, n_named;
    const Value *values; /* [n], then [n_named] */
    const Str   *names;
} CallArguments;

/* A filter, test, method or function. One of the two calls is set. */
typedef struct Builtin {
    const char *name;
    Value (*call)(Interp *in, Value self, const Value *arguments); /* [MAX_PARAMETERS], V_MISSING = not given */
    Value (*call_any)(Interp *in, Value self, const CallArguments *a); /* takes what it is given */
    int         n_required;
    const char *parameters[MAX_PARAMETERS];
} Builtin;

typedef struct Method {
    Value          self;
    const Builtin *builtin;
} Method;

typedef struct Namespace {
    Str   *names;
    Value *values;
    int    n, capacity;
} Namespace;

typedef struct Loop {
    const List *items;
    int64_t     at;
} Loop;

/* ---- jinja_eval.c ---- */

/* Sets the failure: "the chat template failed in line N: ...". Returns an undefined, for `return fail(...)`. */
Value interp_fail(Interp *in, const char *format, ...) __attribute__((format(printf, 2, 3)));
Value interp_say(Interp *in, Str message);  /* raise_exception: the template's own words */
Value interp_limit(Interp *in, const char *what, long long limit);
Value interp_nomem(Interp *in);
bool  interp_charge(Interp *in, int64_t steps); /* false: over the limit */
bool  interp_charge_bytes(Interp *in, size_t n);
bool  interp_charge_items(Interp *in, int64_t n);
bool  interp_enter(Interp *in); /* one level deeper; false: too deep, do not leave */
void  interp_leave(Interp *in);
void *interp_take(Interp *in, size_t n, size_t item_bytes); /* from the arena; NULL after failing */
#define interp_array(in, Type, n) ((Type *)interp_take((in), (size_t)(n), sizeof(Type)))

Value eval(Interp *in, const Node *n);
Value call_builtin(Interp *in, const Builtin *b, const char *kind, Value self, const CallArguments *a);
Value value_attribute(Interp *in, Value object, Str name); /* object.name */
Value value_item(Interp *in, Value object, Value index);   /* object[index] */
Value value_arithmetic(Interp *in, int op, Value a, Value b); /* op: of a token */
void  local_set(Interp *in, int symbol, Value value);      /* in the innermost scope */

/* ---- jinja_exec.c ---- */

void  exec_template(Interp *in);
Value call_macro(Interp *in, const Node *macro, const CallArguments *a);

/* ---- jinja_value.c ---- */

const char *value_type_name(Value v); /* as Python calls it */
bool  value_truth(Value v);
bool  value_is_number(Value v); /* bool, int, float */
double value_number(Value v);
bool  value_equal(Interp *in, Value a, Value b);
int   value_order(Interp *in, Value a, Value b, const char *op); /* -1, 0, 1; failure for what has no order; 2: NaN */
bool  value_contains(Interp *in, Value container, Value item);
Value value_undefined(UndefinedKind kind, ValueType owner, Str name);
Value value_use_undefined(Interp *in, Value undefined); /* fails with the sentence about it */
Value value_copy(Interp *in, const char *text, size_t n);
Value value_list(Interp *in, ValueType type, Value *items, int64_t n);
const Value *dict_find(Interp *in, const Dict *d, Value key);
/* Items of whatever can be walked: a dict's keys, a string's characters. Failure for the rest. */
const List *value_items(Interp *in, Value v);
/* -1 after failing: no len() */
int64_t value_length(Interp *in, Value v);

void  value_write(Interp *in, Buf *out, Value v); /* str() */
void  value_write_repr(Interp *in, Buf *out, Value v);
Str   value_text(Interp *in, Value v); /* str(), in the arena when it is not a string already */
/* A string being built: at most MAX_RENDER_BYTES; text_end copies it to the arena and frees the Buf. text_check looks
 * why a Buf failed, if it did. */
void  text_check(Interp *in, const Buf *b);
void  text_begin(Buf *b);
Value text_end(Interp *in, Buf *b);

/* List that grows in the arena. */
typedef struct ListBuilder {
    Value  *items;
    int64_t n, capacity;
} ListBuilder;
void list_push(Interp *in, ListBuilder *l, Value v);

/* ---- jinja_json.c ---- */

Value value_from_json(Interp *in, const json_t *json);
Value filter_tojson(Interp *in, Value self, const Value *arguments);
void  write_float(Buf *out, double f); /* repr() of Python */

/* ---- tables, by name: jinja_filters.c, jinja_tests.c, jinja_methods.c, jinja_functions.c ---- */

const Builtin *builtin_find(const Builtin *table, int n, Str name);
const Builtin *method_find(Value object, Str name);
const Builtin *function_find(Str name);
bool method_is_unsafe(Value object, Str name); /* would change the object */
