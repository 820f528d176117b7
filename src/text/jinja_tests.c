/* Tests: value is name(arguments). */
#include "text/jinja_text_impl.h"

static Value is_defined(Interp *in, Value v, const Value *a) { return value_bool(v.type != V_UNDEFINED); }
static Value is_undefined(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_UNDEFINED); }
static Value is_none(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_NONE); }
static Value is_true(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_BOOL && v.b); }
static Value is_false(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_BOOL && !v.b); }
static Value is_boolean(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_BOOL); }
static Value is_integer(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_INT); }
static Value is_float(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_FLOAT); }
static Value is_number(Interp *in, Value v, const Value *a) { return value_bool(value_is_number(v)); }
static Value is_string(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_STR); }
static Value is_mapping(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_DICT); }

/* Python asks for len() and []; an undefined has both. */
static Value is_sequence(Interp *in, Value v, const Value *a)
{
    return value_bool(v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE || v.type == V_DICT ||
                      v.type == V_UNDEFINED);
}

static Value is_iterable(Interp *in, Value v, const Value *a)
{
    return value_bool(value_truth(is_sequence(in, v, a)) || v.type == V_GENERATOR || v.type == V_LOOP);
}

static Value is_callable(Interp *in, Value v, const Value *a)
{
    return value_bool(v.type == V_MACRO || v.type == V_FUNCTION || v.type == V_METHOD || v.type == V_UNDEFINED);
}

/* Identity in Python; for what templates compare (constants) type and equality say the same. */
static Value is_sameas(Interp *in, Value v, const Value *a)
{
    return value_bool(v.type == a[0].type && value_equal(in, v, a[0]));
}

static Value is_eq(Interp *in, Value v, const Value *a) { return value_bool(value_equal(in, v, a[0])); }
static Value is_ne(Interp *in, Value v, const Value *a) { return value_bool(!value_equal(in, v, a[0])); }
static Value is_lt(Interp *in, Value v, const Value *a) { return value_bool(value_order(in, v, a[0], "<") == -1); }
static Value is_gt(Interp *in, Value v, const Value *a) { return value_bool(value_order(in, v, a[0], ">") == 1); }
static Value is_in(Interp *in, Value v, const Value *a) { return value_bool(value_contains(in, a[0], v)); }

static Value is_le(Interp *in, Value v, const Value *a)
{
    int order = value_order(in, v, a[0], "<=");
    return value_bool(order == -1 || order == 0);
}

static Value is_ge(Interp *in, Value v, const Value *a)
{
    int order = value_order(in, v, a[0], ">=");
    return value_bool(order == 1 || order == 0);
}

static Value has_rest(Interp *in, Value v, Value divisor, int64_t rest)
{
    return value_bool(value_equal(in, value_arithmetic(in, '%', v, divisor), value_int(rest)));
}

static Value is_odd(Interp *in, Value v, const Value *a) { return has_rest(in, v, value_int(2), 1); }
static Value is_even(Interp *in, Value v, const Value *a) { return has_rest(in, v, value_int(2), 0); }
static Value is_divisibleby(Interp *in, Value v, const Value *a) { return has_rest(in, v, a[0], 0); }

static Value is_lower(Interp *in, Value v, const Value *a)
{
    return value_bool(text_is(in, value_text(in, v), TEXT_LOWER));
}
static Value is_upper(Interp *in, Value v, const Value *a)
{
    return value_bool(text_is(in, value_text(in, v), TEXT_UPPER));
}
static Value is_filter(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_STR && filter_find(v.s)); }
static Value is_test(Interp *in, Value v, const Value *a) { return value_bool(v.type == V_STR && test_find(v.s)); }

const Builtin *test_find(Str name)
{
    static const Builtin tests[] = {
        { "defined", is_defined, NULL, 0, { NULL } },
        { "undefined", is_undefined, NULL, 0, { NULL } },
        { "none", is_none, NULL, 0, { NULL } },
        { "string", is_string, NULL, 0, { NULL } },
        { "mapping", is_mapping, NULL, 0, { NULL } },
        { "sequence", is_sequence, NULL, 0, { NULL } },
        { "iterable", is_iterable, NULL, 0, { NULL } },
        { "true", is_true, NULL, 0, { NULL } },
        { "false", is_false, NULL, 0, { NULL } },
        { "boolean", is_boolean, NULL, 0, { NULL } },
        { "integer", is_integer, NULL, 0, { NULL } },
        { "float", is_float, NULL, 0, { NULL } },
        { "number", is_number, NULL, 0, { NULL } },
        { "callable", is_callable, NULL, 0, { NULL } },
        { "sameas", is_sameas, NULL, 1, { "other" } },
        { "equalto", is_eq, NULL, 1, { "other" } },
        { "eq", is_eq, NULL, 1, { "other" } },
        { "==", is_eq, NULL, 1, { "other" } },
        { "ne", is_ne, NULL, 1, { "other" } },
        { "!=", is_ne, NULL, 1, { "other" } },
        { "lt", is_lt, NULL, 1, { "other" } },
        { "<", is_lt, NULL, 1, { "other" } },
        { "lessthan", is_lt, NULL, 1, { "other" } },
        { "le", is_le, NULL, 1, { "other" } },
        { "<=", is_le, NULL, 1, { "other" } },
        { "gt", is_gt, NULL, 1, { "other" } },
        { ">", is_gt, NULL, 1, { "other" } },
        { "greaterthan", is_gt, NULL, 1, { "other" } },
        { "ge", is_ge, NULL, 1, { "other" } },
        { ">=", is_ge, NULL, 1, { "other" } },
        { "in", is_in, NULL, 1, { "seq" } },
        { "odd", is_odd, NULL, 0, { NULL } },
        { "even", is_even, NULL, 0, { NULL } },
        { "divisibleby", is_divisibleby, NULL, 1, { "num" } },
        { "lower", is_lower, NULL, 0, { NULL } },
        { "upper", is_upper, NULL, 0, { NULL } },
        { "filter", is_filter, NULL, 0, { NULL } },
        { "test", is_test, NULL, 0, { NULL } },
    };
    return builtin_find(tests, COUNT(tests), name);
}
