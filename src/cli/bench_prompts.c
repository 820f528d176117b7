/* See bench_prompts.h. */
#include "cli/bench_prompts.h"

const char *const bench_class_names[BENCH_CLASSES] = { "code", "reasoning", "structured", "chat", "prose" };

const char *const bench_prompts[BENCH_CLASSES][BENCH_PROMPTS] = {
    { "Write a function that merges two sorted lists of intervals and joins those that overlap.",
      "Write a class that keeps the k largest values seen so far.",
      "Write a function that parses a duration such as 1h30m into seconds.",
      "Write a function that counts how often each word occurs in a file." },
    { "A train leaves at 9:40 and arrives at 13:05. How long does it travel? Explain each step.",
      "Three boxes hold 12, 15 and 21 apples. How many more does the largest hold than the mean? Show the working.",
      "If all bloops are razzies and some razzies are lazzies, are some bloops lazzies? Reason it out.",
      "What is 17 * 23 - 19 * 11? Compute it in steps." },
    { "Give a JSON object with the fields name, version, license and a list of three dependencies.",
      "Write a YAML file for a service with two replicas, a port and three environment variables.",
      "Write a CSV table of the first ten squares and cubes.",
      "List the months as a JSON array of objects with number and days." },
    { "Hello! What can you help me with?",
      "My build fails since yesterday. What would you ask me first?",
      "Which is better for a small tool, C or Python?",
      "Thanks, that helped. One more thing: how do I undo the last commit?" },
    { "Write the beginning of a short story about a lighthouse keeper.",
      "Describe a market square early in the morning.",
      "Summarise why the printing press changed Europe.",
      "Write a letter to an old friend about moving to another city." },
};
