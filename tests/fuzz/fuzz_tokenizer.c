/* tokenizer.json: what compiles is JSON, opens, and encodes without harm. */
#include "base/json.h"
#include "base/memory.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer_image_impl.h"

static const char probe[] = "<|im_start|>a ab\n1\xc3\xa9 '";

static void word(void *user, const char *text, size_t n)
{
    IdList *ids = ((void **)user)[0];
    BpeWork *work = ((void **)user)[1];
    bpe_encode(((void **)user)[2], work, text, n, ids);
}

static void use(const Vocab *v)
{
    Error err = { 0 };
    PreTokenizer *p;
    PreTokenizeWork *cutting = NULL;
    BpeWork work = { 0 };
    IdList ids = { .max = 1000 };
    AddedTokens added;
    Bpe bpe;
    size_t at, len;
    bpe_open(&bpe, v);
    if (added_tokens_open(&added, v, TOKEN_ADDED, TOKEN_ADDED, &err) == OK)
        added_tokens_find(&added, probe, sizeof probe - 1, 0, &at, &len);
    if (pretokenizer_open(&p, v, &err) == OK && pretokenize_work_open(&cutting, p, &err) == OK)
        pretokenize(p, cutting, probe, sizeof probe - 1, word, (void *[]){ &ids, &work, &bpe }, &err);
    for (int64_t i = 0; i < ids.n; i++) CHECK(ids.ids[i] >= 0 && ids.ids[i] < v->n_ids);
    pretokenize_work_close(cutting);
    pretokenizer_close(p);
    added_tokens_close(&added);
    bpe_work_free(&work);
    mem_free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Error err = { 0 };
    SourceStamp stamp = { 0 };
    Buf image;
    Vocab v;
    json_t *tree = NULL;
    buf_init(&image, 64 << 20);
    if (image_compile(&image, (const char *)data, n, "input", &stamp, &err) == OK) {
        CHECK(json_parse(&tree, (const char *)data, n, "input", &err) == OK);
        CHECK(image_open(&v, image.data, image.len, "image", &err) == OK);
        use(&v);
    }
    json_decref(tree);
    buf_free(&image);
    return 0;
}
