/* A parsed template: values, the tree, and how source becomes one. Everything lives in the template's arena and is
 * read-only once parsed.
 *
 *     source ─ jinja_lex ─> tokens ─ jinja_parse ─> Node tree ─ jinja_exec, jinja_eval ─> text */
#pragma once

#include "base/arena.h"
#include "base/buf.h"

#include <stdint.h>

/* A template is input from a stranger, as is the conversation. */
enum {
    MAX_TEMPLATE_BYTES = 1 << 20,   /* published ones have at most 20 KB */
    MAX_TEMPLATE_MEMORY = 256 << 20,
    MAX_TEMPLATE_NESTING = 128,     /* of brackets, blocks and prefix operators in the source */
    MAX_TEMPLATE_NAMES = 1024,
};

/* ---- values ---- */

typedef enum ValueType {
    V_MISSING, /* an argument that was not given; no expression has this value */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_GENERATOR, /* what select(), map() ... give: can be walked, has no length, is true even when empty */
    V_DICT,
    V_NAMESPACE,
    V_MACRO,
    V_FUNCTION,
    V_METHOD,
    V_LOOP,
} ValueType;

typedef enum UndefinedKind { /* what the message says when it is used */
    UNDEFINED_NAME,
    UNDEFINED_ATTRIBUTE, /* of a value of type `owner` */
    UNDEFINED_ELEMENT,
    UNDEFINED_UNSAFE,
    UNDEFINED_SAID, /* s is the sentence itself */
} UndefinedKind;

typedef struct Value Value;
typedef struct List {
    Value  *items;
    int64_t n;
} List;
typedef struct Dict { /* in order of insertion */
    Value  *keys, *values;
    int64_t n;
} Dict;

struct Value {
    uint8_t type;  /* ValueType */
    uint8_t kind;  /* of an undefined: UndefinedKind */
    uint8_t owner; /* of an undefined: ValueType */
    union {
        bool        b;
        int64_t     i;
        double      f;
        Str         s; /* of an undefined: its name */
        const List *list;
        const Dict *dict;
        struct Namespace     *ns;
        struct Loop          *loop;
        struct Method        *method;
        const struct Node    *macro;
        const struct Builtin *function;
    };
};

static inline Value value_none(void) { return (Value){ .type = V_NONE }; }
static inline Value value_bool(bool b) { return (Value){ .type = V_BOOL, .b = b }; }
static inline Value value_int(int64_t i) { return (Value){ .type = V_INT, .i = i }; }
static inline Value value_float(double f) { return (Value){ .type = V_FLOAT, .f = f }; }
static inline Value value_str(Str s) { return (Value){ .type = V_STR, .s = s }; }

/* ---- tokens ---- */

typedef enum TokenType {
    T_TEXT,         /* between tags, white space already cut */
    T_OUTPUT_BEGIN, /* {{ */
    T_OUTPUT_END,
    T_BLOCK_BEGIN, /* {% */
    T_BLOCK_END,
    T_NAME,
    T_STRING, /* escapes resolved */
    T_INT,
    T_FLOAT,
    T_OP,
    T_END,
} TokenType;

#define OP(a, b) ((a) | (b) << 8) /* == is OP('=', '='); one-character operators are that character */

typedef struct Token {
    TokenType type;
    int       line;
    int       op;
    Str       text;
    int64_t   i;
    double    f;
} Token;

/* ---- tree ---- */

typedef enum NodeKind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,   /* items: key, value, key, value ... */
    N_CONCAT, /* a ~ b ~ c */
    N_AND,
    N_OR,
    N_ARITHMETIC, /* first (op operand)*, one level of precedence, from the left */
    N_COMPARE,    /* the same, as Python chains it */
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_CONDITIONAL,
    N_ATTRIBUTE,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_BREAK,
    N_CONTINUE,
    N_GENERATION,
} NodeKind;

enum { OP_IN = 1, OP_NOT_IN = 2 }; /* beside the operators of tokens */

typedef struct Node Node;
typedef struct Operand {
    int   op;
    Node *node;
} Operand;

typedef struct Arguments {
    int    n, n_named;
    Node **values; /* [n] by position, then [n_named] */
    Str   *names;  /* [n_named] */
} Arguments;

typedef struct Parameter {
    int   symbol;
    Node *default_value; /* NULL = none */
} Parameter;

struct Node {
    NodeKind kind;
    int      line;
    Node    *next; /* in a list of statements */
    union {
        Value constant;
        Str   text;
        int   symbol;
        Node *operand; /* N_NOT, N_NEGATE, N_PLUS, N_OUTPUT, N_GENERATION (its body) */
        struct {
            Node **items;
            int    n;
        } list;
        struct {
            Node    *first;
            Operand *rest;
            int      n;
        } chain;
        struct {
            Node *test, *then, *otherwise;
        } conditional;
        struct {
            Node *object;
            Str   name;
        } attribute;
        struct {
            Node *object, *index;
        } item;
        struct {
            Node *object, *start, *stop, *step; /* the last three may be NULL */
        } slice;
        struct {
            Node     *callee;
            Arguments arguments;
        } call;
        struct {
            Node     *input;
            const struct Builtin *builtin; /* NULL: unknown, an error only when it runs */
            Str       name;
            Arguments arguments;
        } apply; /* N_FILTER, N_TEST */
        struct {
            Node **tests;  /* [n] */
            Node **bodies; /* [n + 1], the last for else; NULL = empty */
            int    n;
        } branches; /* N_IF */
        struct {
            Node *target, *iterable, *filter, *body, *otherwise;
        } loop;
        struct {
            Node *target, *value; /* N_SET_BLOCK: value is the body */
        } set;
        struct {
            int        symbol, n_parameters;
            Parameter *parameters;
            Node      *body;
        } macro;
    };
};

typedef struct Template {
    Arena  arena;
    Str   *names; /* symbols to names; the first few are fixed, see jinja_parse.c */
    int    n_names;
    Node  *body;
} Template;

enum { SYMBOL_LOOP = 0 };

/* Parses source[n] into t, whose arena is initialised. ERR_INPUT names the line. */
Status template_parse(Template *t, const char *source, size_t n, Error *err);
int    template_symbol(const Template *t, Str name); /* -1 when the template never mentions the name */

/* Why the arena gave nothing for `bytes`: ERR_INPUT = its limit, ERR_NOMEM = the system. */
static inline Status arena_refusal(const Arena *a, size_t bytes)
{
    return bytes > a->limit - a->used ? ERR_INPUT : ERR_NOMEM;
}

/* tokens end with T_END; they and their texts live in the arena. */
Status jinja_lex(Arena *arena, Token **tokens, int *n_tokens, const char *source, size_t n, Error *err);

/* By name; NULL when unknown (jinja_filters.c, jinja_tests.c). */
const struct Builtin *filter_find(Str name);
const struct Builtin *test_find(Str name);
