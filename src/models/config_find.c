/* MODEL of the command line to a directory: a bundled model, a directory, or a Hugging Face id in the local cache.
 *
 *     nano          TANDEM_MODELS/nano, PROGRAM/../share/tandem/models/nano (installed),
 *                   PROGRAM/../models/nano (build/)
 *     ./some/dir    itself
 *     owner/name    HUB/models--owner--name/snapshots/COMMIT, where COMMIT stands in refs/main */
#include "base/file.h"
#include "base/memory.h"
#include "models/config.h"
#include "tensor/gguf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A part of a path that stays where it is put: no slash, no leading dot. */
static bool is_plain(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n < 128 && name[0] != '.' && strspn(name, letters) == n;
}

/* The path printed into out, if there is a directory of that name. */
static bool is_dir(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool is_dir(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n > 0 && (size_t)n < size && dir_exists(out);
}

/* The directory that the program lies in. */
static bool program_dir(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n <= 0 || (size_t)n >= size - 1) return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    *slash = '\0';
    return true;
}

static bool find_bundled(const char *name, char *dir, size_t size)
{
    char program[PATH_MAX];
    const char *models = getenv("TANDEM_MODELS");
    if (models && *models && is_dir(dir, size, "%s/%s", models, name)) return true;
    if (!program_dir(program, sizeof program)) return false;
    return is_dir(dir, size, "%s/../share/tandem/models/%s", program, name) ||
           is_dir(dir, size, "%s/../models/%s", program, name);
}

/* Where the Hugging Face tools keep what they downloaded; false when even HOME is unknown. */
static bool hub_dir(char *out, size_t size)
{
    static const struct {
        const char *variable, *below;
    } places[] = { { "HF_HUB_CACHE", "" }, { "HF_HOME", "/hub" }, { "XDG_CACHE_HOME", "/huggingface/hub" },
                   { "HOME", "/.cache/huggingface/hub" } };
    for (int i = 0; i < COUNT(places); i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value) continue;
        int n = snprintf(out, size, "%s%s", value, places[i].below);
        return n > 0 && (size_t)n < size;
    }
    return false;
}

static bool split_id(const char *id, char owner[128], char name[128])
{
    const char *slash = strchr(id, '/');
    if (!slash || (size_t)(slash - id) >= 128) return false;
    memcpy(owner, id, (size_t)(slash - id));
    owner[slash - id] = '\0';
    snprintf(name, 128, "%s", slash + 1);
    return is_plain(owner) && is_plain(name) && strlen(slash + 1) < 128;
}

/* The commit that refs/main names. */
static Status read_commit(const char *repo, char commit[128], Error *err)
{
    char path[PATH_MAX], *text;
    size_t n;
    Status status = path_join(path, sizeof path, repo, "refs/main", err);
    if (status == OK) status = file_read(path, 4096, &text, &n, err);
    if (status != OK) return status;
    snprintf(commit, 128, "%.*s", (int)strcspn(text, " \r\n"), text);
    mem_free(text);
    return is_plain(commit) ? OK : error_set(err, ERR_INPUT, "%s does not hold the name of a commit", path);
}

static Status find_in_hub(const char *id, const char *owner, const char *name, char *dir, size_t size, Error *err)
{
    char hub[PATH_MAX], repo[PATH_MAX], commit[128];
    if (!hub_dir(hub, sizeof hub)) return error_set(err, ERR_NOT_FOUND, "there is no directory %s", id);
    if (!is_dir(repo, sizeof repo, "%s/models--%s--%s", hub, owner, name)) {
        return error_set(err, ERR_NOT_FOUND, "there is no directory %s, and no such model in the Hugging Face cache %s",
                         id, hub);
    }
    Status status = read_commit(repo, commit, err);
    if (status != OK) return status;
    if (is_dir(dir, size, "%s/snapshots/%s", repo, commit)) return OK;
    return error_set(err, ERR_NOT_FOUND, "%s has no snapshot %s: the download of %s did not end", repo, commit, id);
}

Status model_find(const char *name, char *dir, size_t size, Error *err)
{
    char owner[128], model[128];
    if (!*name) return error_set(err, ERR_INPUT, "the name of the model is empty");
    if (is_plain(name) && find_bundled(name, dir, size)) return OK;
    if (is_dir(dir, size, "%s", name)) return OK;
    if (file_exists(name) && gguf_is_path(name)) {
        int n = snprintf(dir, size, "%s", name);
        return n > 0 && (size_t)n < size ? OK : error_set(err, ERR_INPUT, "the path of the model is too long");
    }
    if (file_exists(name)) return error_set(err, ERR_INPUT, "%s is a file; give the directory that holds it", name);
    if (split_id(name, owner, model)) return find_in_hub(name, owner, model, dir, size, err);
    return error_set(err, ERR_NOT_FOUND,
                     "there is no model %s: it is neither bundled (nano, nano-plain) nor a directory nor owner/name",
                     name);
}
