/* Memory that malloc keeps after it was freed. */
#pragma once

/* Gives it back to the system, and from now on pieces of a megabyte as soon as they are freed. Once, when loading has ended. */
void mem_trim(void);
