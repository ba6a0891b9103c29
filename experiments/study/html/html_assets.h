/* html_assets.h: what is the same in every page, before and after the data. CMake makes it of the
 * files in page/ (embed.cmake). */
#ifndef TSR_STUDY_HTML_ASSETS_H
#define TSR_STUDY_HTML_ASSETS_H

#include <stddef.h>

extern const unsigned char tsr__html_head[], tsr__html_tail[];
extern const size_t tsr__html_head_bytes, tsr__html_tail_bytes;

#endif
