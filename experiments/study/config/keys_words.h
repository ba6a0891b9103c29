/* keys_words.h: the words that enumerated keys allow; the index of a word is the stored value. */
#ifndef TSR_STUDY_KEYS_WORDS_H
#define TSR_STUDY_KEYS_WORDS_H

extern const char *const tsr_words_accum[];     /* enum tsr_accumulate */
extern const char *const tsr_words_dtype[];     /* tsr_dtype up to f16 */
extern const char *const tsr_words_real[];      /* tsr_dtype from f32 to f64 */
extern const char *const tsr_words_optimizer[]; /* enum tsr_opt_name */
extern const char *const tsr_words_variant[];
extern const char *const tsr_words_clip[];
extern const char *const tsr_words_loss[];             /* tsr_dtype up to bf16 */
extern const char *const tsr_words_state[];            /* tsr_dtype up to bf16 */
extern const char *const tsr_words_impl[];             /* enum tsr_impl */
extern const char *const tsr_words_names[];            /* enum tsr_names */
extern const char *const tsr_words_norm[];             /* enum tsr_norm */
extern const char *const tsr_words_sync[];             /* enum tsr_sync */
extern const char *const tsr_words_ckpt[];             /* of TSR_KEY_CHECKPOINT */
extern const char *const tsr_words_hooks[];            /* enum tsr_hooks */
extern const char *const tsr_words_attention[];        /* enum tsr_attention */
extern const char *const tsr_words_linear[];           /* enum tsr_linear */
extern const char *const tsr_words_dialect[];          /* enum tsr_dialect */
extern const char *const tsr_words_api[];              /* enum tsr_api */
extern const char *const tsr_words_fsdp1_prefetch[];   /* enum tsr_fsdp1_prefetch */
extern const char *const tsr_words_wrap[];             /* enum tsr_wrap_kind without LIST */
extern const char *const tsr_words_offload[];          /* enum tsr_offload */
extern const char *const tsr_words_sections[];         /* enum tsr_section */
extern const char *const tsr_words_init[];             /* enum tsr_init */
extern const char *const tsr_words_load[];             /* enum tsr_load */
extern const char *const tsr_words_save[];             /* enum tsr_save */
extern const char *const tsr_words_order[];            /* enum tsr_order */
extern const char *const tsr_words_decay[];            /* enum tsr_decay */
extern const char *const tsr_words_schedule[];         /* enum tsr_schedule_kind */
extern const char *const tsr_words_limit[];            /* enum tsr_limit */
extern const char *const tsr_words_algorithm[];        /* enum tsr_algorithm */
extern const char *const tsr_words_protocol[];         /* enum tsr_protocol */
extern const char *const tsr_words_attention_kernel[]; /* enum tsr_attention_kernel */
extern const char *const tsr_words_norm_kernel[];      /* enum tsr_norm_kernel */

#endif
