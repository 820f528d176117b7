/* Functions that templates find without anyone passing them, and the look-up in tables that filters and methods
 * share. */
#include "text/jinja_eval_impl.h"

#include <time.h>

enum { MAX_RANGE = 100000 /* of Jinja2's sandbox */ };

const Builtin *builtin_find(const Builtin *table, int n, Str name)
{
    for (int i = 0; i < n; i++) {
        if (str_equal(str_of(table[i].name), name)) return &table[i];
    }
    return NULL;
}

static bool int_argument(Interp *in, Value v, int64_t *out)
{
    if (v.type != V_INT && v.type != V_BOOL) {
        interp_fail(in, "'%s' object cannot be interpreted as an integer", value_type_name(v));
        return false;
    }
    *out = v.type == V_INT ? v.i : v.b;
    return true;
}

/* range(stop), range(start, stop), range(start, stop, step) */
static Value call_range(Interp *in, Value self, const Value *a)
{
    int64_t start = 0, stop = 0, step = 1;
    bool one = a[1].type == V_MISSING;
    if (!int_argument(in, a[0], one ? &stop : &start)) return self;
    if (!one && !int_argument(in, a[1], &stop)) return self;
    if (a[2].type != V_MISSING && !int_argument(in, a[2], &step)) return self;
    if (step == 0) return interp_fail(in, "range() arg 3 must not be zero");
    double length = ((double)stop - (double)start) / (double)step;
    if (length > MAX_RANGE)
        return interp_fail(in, "range too big: the sandbox blocks ranges larger than %d", MAX_RANGE);
    ListBuilder l = { 0 };
    for (int64_t i = start; (step > 0 ? i < stop : i > stop) && interp_charge_items(in, 16); i += step) {
        list_push(in, &l, value_int(i));
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
    }
    return value_list(in, V_LIST, l.items, l.n);
}

/* namespace(a=1, ...), namespace({...}) */
static Value call_namespace(Interp *in, Value self, const CallArguments *a)
{
    const Dict nothing = { 0 }, *d = a->n == 1 && a->values[0].type == V_DICT ? a->values[0].dict : &nothing;
    if (a->n > 1 || (a->n == 1 && d == &nothing))
        return interp_fail(in, "namespace() takes one dict, or named arguments");
    int n = (int)d->n + a->n_named;
    Namespace *ns = interp_array(in, Namespace, 1);
    Str *names = interp_array(in, Str, n);
    Value *values = interp_array(in, Value, n);
    if (in->failed) return self;
    for (int i = 0; i < n; i++) {
        bool named = i >= d->n;
        names[i] = named ? a->names[i - d->n] : value_text(in, d->keys[i]);
        values[i] = named ? a->values[a->n + i - (int)d->n] : d->values[i];
    }
    *ns = (Namespace){ names, values, n, n };
    return (Value){ .type = V_NAMESPACE, .ns = ns };
}

/* dict(a=1, ...), dict({...}, a=1) */
static Value call_dict(Interp *in, Value self, const CallArguments *a)
{
    const Dict nothing = { 0 }, *from = a->n == 1 && a->values[0].type == V_DICT ? a->values[0].dict : &nothing;
    if (a->n > 1 || (a->n == 1 && from == &nothing))
        return interp_fail(in, "dict() takes one dict, and named arguments");
    Dict *d = interp_array(in, Dict, 1);
    Value *keys = interp_array(in, Value, from->n + a->n_named),
          *values = interp_array(in, Value, from->n + a->n_named);
    if (in->failed) return self;
    *d = (Dict){ keys, values, from->n };
    if (from->n) memcpy(keys, from->keys, (size_t)from->n * sizeof *keys);
    if (from->n) memcpy(values, from->values, (size_t)from->n * sizeof *values);
    for (int i = 0; i < a->n_named; i++) {
        const Value *known = dict_find(in, d, value_str(a->names[i]));
        int64_t at = known ? known - values : d->n++;
        keys[at] = value_str(a->names[i]);
        values[at] = a->values[a->n + i];
    }
    return (Value){ .type = V_DICT, .dict = d };
}

static Value call_raise_exception(Interp *in, Value self, const Value *a)
{
    return interp_say(in, value_text(in, a[0]));
}

static Value call_strftime_now(Interp *in, Value self, const Value *a)
{
    char format[200], text[400];
    struct tm tm;
    time_t now = time(NULL);
    if (a[0].type != V_STR || a[0].s.len >= sizeof format)
        return interp_fail(in, "strftime_now() takes a short format");
    memcpy(format, a[0].s.data, a[0].s.len);
    format[a[0].s.len] = '\0';
    localtime_r(&now, &tm);
    return value_copy(in, text, strftime(text, sizeof text, format, &tm));
}

const Builtin *function_find(Str name)
{
    static const Builtin functions[] = {
        { "range", call_range, NULL, 1, { "start", "stop", "step" } },
        { "namespace", NULL, call_namespace, 0, { NULL } },
        { "dict", NULL, call_dict, 0, { NULL } },
        { "raise_exception", call_raise_exception, NULL, 1, { "message" } },
        { "strftime_now", call_strftime_now, NULL, 1, { "format" } },
    };
    return builtin_find(functions, COUNT(functions), name);
}
