/* paths.h: where models, clusters and stacks are found, and what else comes with the program. */
#ifndef TSR_STUDY_PATHS_H
#define TSR_STUDY_PATHS_H

#include "experiments/study/base/yaml.h"

/* The build says where its source tree is and where its data will be installed. */
#ifndef TSR_SOURCE_DIR
#define TSR_SOURCE_DIR "."
#endif
#ifndef TSR_DATA_DIR
#define TSR_DATA_DIR "/usr/local/share/tessera"
#endif

enum { TSR_FILE_BYTES = 1024 };

/* A model may also be a folder with a config.json.
 *
 * Finds a model ("models", prefix "") or cluster ("clusters", prefixes "cluster-" and "node-")
 * by name, or by path if `name` contains a slash or an ending. A path counts from the folder of
 * `experiment`, then from the working directory. Names are looked up beside the experiment, in the
 * folders above it, in the data beside the program, in the installed data, and in the source tree.
 * A file above the experiment that is read instead of another one that comes with the program is
 * told to the listener, once, with both paths.
 */
tsr_status tsr_find_model(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          char out[TSR_FILE_BYTES]) TSR_MUST_USE;
tsr_status tsr_find_cluster(const char *name, const struct tsr_yaml_node *at,
                            const char *experiment, char out[TSR_FILE_BYTES]) TSR_MUST_USE;
/* A device file, clusters/gpu-NAME.json. */
tsr_status tsr_find_gpu(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                        char out[TSR_FILE_BYTES]) TSR_MUST_USE;
/* A training stack, stacks/NAME.yaml. The complaint about a name that is nowhere lists those that
 * there are. */
tsr_status tsr_find_stack(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          char out[TSR_FILE_BYTES]) TSR_MUST_USE;
/* Where the node, device and kernel files are that a user's cluster may name: NULL-terminated. */
struct tsr_data_folders {
    char beside[TSR_FILE_BYTES];
    const char *list[4];
};
const char *const *tsr_cluster_folders(struct tsr_data_folders *out);
/* A file by path only (module trees). */
tsr_status tsr_find_file(const char *key, const char *name, const struct tsr_yaml_node *at,
                         const char *experiment, char out[TSR_FILE_BYTES]) TSR_MUST_USE;
/* A file of the folder "validation", looked up like a name; false if there is none. */
bool tsr_find_validation(const char *name, const char *experiment, char out[TSR_FILE_BYTES]);
/* What is called `what` (plots, models, validation/conditions.yaml) of the data that lie beside the
 * program that runs, as an installation lays them down: bin/tessera, share/tessera. Wherever that
 * was moved, it has its own. False: there is none. */
bool tsr_data_beside_program(const char *what, char out[TSR_FILE_BYTES]);
/* True if `name` is a path, not a bare name. */
bool tsr_is_path(const char *name);

#endif
