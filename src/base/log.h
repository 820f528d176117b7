/* One line an event, to stderr: "12.345 info  engine: text key=value". Any thread.
 * Under systemd (JOURNAL_STREAM set) each line starts with <N>. Level from TANDEM_LOG_LEVEL
 * (error, warn, info, debug; default warn for one-shot commands, info for serve). */
#pragma once

typedef enum LogLevel { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } LogLevel;

void log_level_set(LogLevel level);     /* whatever the environment says */
void log_level_default(LogLevel level); /* unless TANDEM_LOG_LEVEL says otherwise */
void log_write(LogLevel level, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(area, ...) log_write(LOG_ERROR, area, __VA_ARGS__)
#define log_warn(area, ...)  log_write(LOG_WARN, area, __VA_ARGS__)
#define log_info(area, ...)  log_write(LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) log_write(LOG_DEBUG, area, __VA_ARGS__)
