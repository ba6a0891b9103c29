/* report_labels.c: places the names of points in a picture so that nothing overlaps.
 *
 * Each name tries places around its point, the near ones first, and takes the cheapest; a few
 * rounds over all names let early ones move out of the way of late ones. A dozen names need well
 * under a millisecond.
 */
#include "experiments/study/report/report_labels.h"

#include <math.h>

enum { N_RADII = 9, N_ANGLES = 16, N_ROUNDS = 6, MAX_PLACED = 256 };

static const double POINT_RADIUS = 6, NEAR = 12;
static const double HARD = 1000; /* cost of an overlap */

static struct tsr__box text_box(const struct tsr__label *label)
{
    double width = (double)label->length * TSR__LETTER_WIDTH;
    double left = label->text_x;
    if (label->align == 0)
        left -= width / 2;
    else if (label->align > 0)
        left -= width;
    return (struct tsr__box){left, left + width, label->text_y - TSR__LINE_HEIGHT / 2,
                             label->text_y + TSR__LINE_HEIGHT / 2};
}

static bool overlap(struct tsr__box a, struct tsr__box b)
{
    return a.left < b.right && b.left < a.right && a.bottom < b.top && b.bottom < a.top;
}

/* True if the line between two points meets the box (sampled: lines here are short). */
static bool line_meets(double x0, double y0, double x1, double y1, struct tsr__box box)
{
    enum { STEPS = 24 };
    for (int i = 1; i < STEPS; i++) {
        double x = x0 + (x1 - x0) * i / STEPS, y = y0 + (y1 - y0) * i / STEPS;
        if (x > box.left && x < box.right && y > box.bottom && y < box.top)
            return true;
    }
    return false;
}

static double cost_with(const struct tsr__label *mine, struct tsr__box box,
                        const struct tsr__label *other, bool same)
{
    double cost = 0;
    struct tsr__box point = {other->x - POINT_RADIUS, other->x + POINT_RADIUS,
                             other->y - POINT_RADIUS, other->y + POINT_RADIUS};
    if (overlap(box, point))
        cost += HARD;
    if (same)
        return cost;
    if (mine->leader && line_meets(mine->x, mine->y, mine->text_x, mine->text_y, point) &&
        hypot(other->x - mine->x, other->y - mine->y) > POINT_RADIUS)
        cost += HARD / 10;
    if (other->length == 0) /* not placed yet */
        return cost;
    struct tsr__box theirs = text_box(other);
    if (overlap(box, theirs))
        cost += HARD;
    if (mine->leader && line_meets(mine->x, mine->y, mine->text_x, mine->text_y, theirs))
        cost += HARD / 4;
    if (other->leader && line_meets(other->x, other->y, other->text_x, other->text_y, box))
        cost += HARD / 4;
    return cost;
}

/* What stays the same while one label is placed. */
struct scene {
    const struct tsr__box *avoid;
    size_t n_avoid;
    bool placed[MAX_PLACED];
};

static double cost_of(const struct tsr__label *labels, size_t n, size_t i,
                      const struct tsr__label *candidate, const struct scene *scene)
{
    struct tsr__box box = text_box(candidate);
    double cost = hypot(candidate->text_x - candidate->x, candidate->text_y - candidate->y);
    if (box.left < 2 || box.right > TSR__PLOT_WIDTH - 2 || box.bottom < 2 ||
        box.top > TSR__PLOT_HEIGHT - 2)
        cost += 4 * HARD;
    for (size_t a = 0; a < scene->n_avoid; a++)
        cost += overlap(box, scene->avoid[a]) ? HARD / 2 : 0;
    for (size_t j = 0; j < n; j++) {
        struct tsr__label other = labels[j];
        if (!scene->placed[j])
            other.length = 0;
        cost += cost_with(candidate, box, &other, j == i);
    }
    return cost;
}

/* The text begins nearer to another point than to its own, so that only a line tells whose name it
 * is. */
static bool is_nearer_to_another(const struct tsr__label *labels, size_t n, size_t i,
                                 const struct tsr__label *candidate)
{
    double own = hypot(candidate->text_x - candidate->x, candidate->text_y - candidate->y);
    for (size_t j = 0; j < n; j++)
        if (j != i && labels[j].length &&
            hypot(candidate->text_x - labels[j].x, candidate->text_y - labels[j].y) < own)
            return true;
    return false;
}

static void place_one(struct tsr__label *labels, size_t n, size_t i, const struct scene *scene)
{
    static const double radii[N_RADII] = {12, 17, 26, 38, 54, 72, 96, 124, 160};
    struct tsr__label best = labels[i];
    double best_cost = INFINITY;
    for (int r = 0; r < N_RADII; r++) {
        for (int a = 0; a < N_ANGLES; a++) {
            struct tsr__label candidate = labels[i];
            double angle = 2 * 3.14159265358979 * a / N_ANGLES;
            candidate.text_x += radii[r] * cos(angle) + labels[i].x - labels[i].text_x;
            candidate.text_y = labels[i].y + radii[r] * sin(angle);
            candidate.align = cos(angle) > 0.3 ? -1 : (cos(angle) < -0.3 ? 1 : 0);
            candidate.leader =
                radii[r] > NEAR + 6 || is_nearer_to_another(labels, n, i, &candidate);
            /* To the right first, then left; above and below when there is no room. */
            double cost = cost_of(labels, n, i, &candidate, scene) + 2 * fabs(sin(angle)) +
                          (cos(angle) < 0 ? 1 : 0);
            if (cost < best_cost) {
                best_cost = cost;
                best = candidate;
            }
        }
    }
    labels[i] = best;
}

void tsr__place_labels(struct tsr__label *labels, size_t n, const struct tsr__box *avoid,
                       size_t n_avoid)
{
    struct scene scene = {.avoid = avoid, .n_avoid = n_avoid};
    for (size_t i = 0; i < n; i++) {
        labels[i].text_x = labels[i].x + NEAR;
        labels[i].text_y = labels[i].y;
        labels[i].align = -1;
        labels[i].leader = false;
    }
    if (n > MAX_PLACED) /* nobody reads such a picture: names right of their points */
        return;
    for (int round = 0; round < N_ROUNDS; round++) {
        for (size_t i = 0; i < n; i++) {
            place_one(labels, n, i, &scene);
            scene.placed[i] = true;
        }
    }
}
