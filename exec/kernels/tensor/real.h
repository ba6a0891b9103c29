/* real.h: the type that a template computes in. A file NAME_real.h is read twice, by NAME.h or by
 * NAME.c, with TSR_REAL_F64 0 and 1, and includes this one first (so it has no guard).
 *
 * TSR_REAL: float or double. TSR_R(name): name_f32 or name_f64. TSR_M(exp): expf or exp.
 */
#undef TSR_REAL
#undef TSR_R
#undef TSR_M
#if TSR_REAL_F64
#define TSR_REAL    double
#define TSR_R(name) name##_f64
#define TSR_M(name) name
#else
#define TSR_REAL    float
#define TSR_R(name) name##_f32
#define TSR_M(name) name##f
#endif
