/* Chat templates: any text parses or is refused, renders or is refused, in bounded time and memory. */
#include "fuzz/fuzz.h"
#include "text/chat_template.h"

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\" be \"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]},"
    "{\"role\":\"assistant\",\"content\":\"yo\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1.5,\"b\":null}}}]}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *messages;
    Error err = { 0 };
    ChatTemplate *t;
    if (!messages) CHECK(json_parse(&messages, conversation, sizeof conversation - 1, "conversation", &err) == OK);
    if (chat_template_parse(&t, (const char *)data, n, &err) != OK) return 0;
    ChatInput input = { .messages = messages, .kwargs = json_array_get(messages, 0), .add_generation_prompt = true };
    Buf out;
    buf_init(&out, 16 << 20);
    chat_template_render(t, &input, &out, &err);
    buf_free(&out);
    chat_template_close(t);
    return 0;
}
