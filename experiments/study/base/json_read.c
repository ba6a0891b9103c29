/* json_read.c: values of JSON objects by key (json_read.h). */
#include "experiments/study/base/json_read.h"

const char *tsr_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

json_int_t tsr_json_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

bool tsr_json_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}
