/* Parsing in two files: jinja_parse.c reads tokens and statements, jinja_expressions.c what stands in them.
 *
 * The first failure makes `failed` true and every later step return quickly; nodes made after it are never run. */
#pragma once

#include "text/jinja_ast_impl.h"

typedef struct Parser {
    Template *t;
    Token    *tokens;
    int       at;
    int       nesting;
    int       loops; /* for blocks around this place, within the innermost macro */
    int       name_capacity;
    bool      failed;
    Status    status; /* why */
    Error    *err;
    Node      lost; /* what parser_node() gives after a failure, so that callers need not look */
} Parser;

typedef struct NodeList { /* grows while its end is unknown */
    Node **items;
    int    n, capacity;
} NodeList;

/* ---- jinja_parse.c ---- */

void  parser_fail(Parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *parser_take(Parser *p, size_t n, size_t item_bytes); /* NULL after a failure */
Node *parser_node(Parser *p, NodeKind kind);
Node *parser_list(Parser *p, NodeKind kind, const NodeList *list);
void  node_list_add(Parser *p, NodeList *list, Node *node);

void  token_describe(const Token *t, char out[64]);
void  parser_expected(Parser *p, const char *what); /* fails: "expected what, got the current token" */
void  parser_expect_op(Parser *p, int op, const char *what);
void  parser_expect(Parser *p, TokenType type, const char *what);
Str   parser_expect_name(Parser *p);
int   parser_symbol(Parser *p, Str name);
bool  parser_enter(Parser *p); /* one level deeper; false: too deep, do not leave */
void  parser_leave(Parser *p);

/* ---- jinja_expressions.c ---- */

Node *parse_expression(Parser *p);
Node *parse_or(Parser *p); /* an expression without "a if b else c" */
Node *parse_tuple(Parser *p);
Node *parse_tuple_of(Parser *p, Node *(*parse_item)(Parser *), bool in_parentheses);
Node *parse_name(Parser *p);
Node *parse_attribute(Parser *p, Node *object);
bool  is_constant_name(Str name, Value *value); /* true, none ... */

/* ---- tokens ---- */

static inline const Token *current(const Parser *p) { return &p->tokens[p->at]; }
static inline void advance(Parser *p) { if (current(p)->type != T_END) p->at++; }
static inline bool is_op(const Parser *p, int op) { return current(p)->type == T_OP && current(p)->op == op; }
static inline bool is_word_at(const Parser *p, int at, const char *word)
{
    return p->tokens[at].type == T_NAME && str_equal(p->tokens[at].text, str_of(word));
}
static inline bool is_word(const Parser *p, const char *word) { return is_word_at(p, p->at, word); }

static inline bool skip_op(Parser *p, int op)
{
    if (!is_op(p, op)) return false;
    advance(p);
    return true;
}

static inline bool skip_word(Parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    advance(p);
    return true;
}
