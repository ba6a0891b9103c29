/* report_labels.h: places the names of points in a picture so that nothing overlaps. */
#ifndef TSR_STUDY_REPORT_LABELS_H
#define TSR_STUDY_REPORT_LABELS_H

#include "engine/program/base.h"

/* The drawn area of plots/compare-time-memory.gp in pixels, and the width of a letter there. */
enum { TSR__PLOT_WIDTH = 830, TSR__PLOT_HEIGHT = 490 };
#define TSR__LETTER_WIDTH 6.7
/* Longer names stand in a legend below the picture. */
enum { TSR__LABEL_LETTERS = 36 };
#define TSR__LINE_HEIGHT 15.0

struct tsr__label {
    double x, y;   /* the point, pixels from the lower left corner */
    size_t length; /* letters of the name */
    /* Result: where the text begins (align -1), has its middle (0) or ends (1); its mid-height. */
    double text_x, text_y;
    int align;
    bool leader; /* far enough for a line from the point to the text */
};

/* A rectangle in pixels: of a text, or something else that texts should not cross. */
struct tsr__box {
    double left, right, bottom, top;
};

void tsr__place_labels(struct tsr__label *labels, size_t n, const struct tsr__box *avoid,
                       size_t n_avoid);

#endif
