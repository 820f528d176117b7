/* Between config.c and config_rope.c: keys read one by one, the first failure kept. */
#pragma once

#include "base/json.h"
#include "models/config.h"

typedef struct ConfigReader {
    const json_t *root, *text; /* the file; the object in it that describes the language model */
    const char   *file;        /* for messages */
    Status        status;
    Error        *err;
} ConfigReader;

Status config_fail(ConfigReader *r, Status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* `otherwise` where the key is missing or null; min after a failure, so that nothing runs off its range. */
int64_t config_int(ConfigReader *r, const json_t *object, const char *key, int64_t min, int64_t max, int64_t otherwise);
int64_t config_need_int(ConfigReader *r, const json_t *object, const char *key, int64_t min, int64_t max);
double  config_double(ConfigReader *r, const json_t *object, const char *key, double min, double max, double otherwise);
bool    config_bool(ConfigReader *r, const json_t *object, const char *key, bool otherwise);
/* Borrowed; `otherwise` or NULL where missing. */
const char *config_string(ConfigReader *r, const json_t *object, const char *key, const char *otherwise);
json_t     *config_array(ConfigReader *r, const json_t *object, const char *key);
json_t     *config_object(ConfigReader *r, const json_t *object, const char *key);

/* config.json as it would be for a .gguf file; the caller's. */
Status config_of_gguf(json_t **out, const char *path, Error *err);

/* The rotary scaling that a .gguf file states as factors of its frequencies, into c->rope. */
Status config_fit_rope_factors(ModelConfig *c, const char *path, Error *err);

/* rope_theta, rope_scaling, rope_parameters into c->rope; head_dim and max_position are there. */
void config_read_rope(ConfigReader *r, ModelConfig *c);
