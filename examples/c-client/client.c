/* A device of a federation in C: softmax regression with FedAvg, against docs/explanation/wire.md.
 *
 *     sudo apt install gcc libmosquitto-dev libssl-dev
 *     cc -O2 -Wall -o client client.c -lmosquitto -lcrypto -lm
 *     ./client HOST PORT ca.crt device-3.crt device-3.key 3 mine.csv [FEDERATION]
 *
 * mine.csv has one sample per line: the label, then the inputs, separated by commas. Every fourth line is for testing.
 * The data stay here; only gradients and four metrics are sent. Sections refer to wire.md. */

#include <math.h>
#include <mosquitto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES (240 * 1024)
#define MOST_BYTES (16L << 20) /* largest model that is accepted */
#define KEEPALIVE_S 20

static void die(const char *what) {
    fprintf(stderr, "client: %s\n", what);
    exit(2);
}

static void *allocate(size_t size) {
    void *memory = calloc(size, 1);
    if (!memory) die("out of memory");
    return memory;
}

/* ---- JSON: objects are read by key, from a text that ends with a zero */

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *skip_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : NULL;
}

static const char *skip_value(const char *at) {
    if (*at == '"') return skip_string(at);
    if (*at != '{' && *at != '[') return at + strcspn(at, ",}] \t\r\n");
    for (int depth = 0; *at;) {
        if (*at == '"') {
            if (!(at = skip_string(at))) return NULL;
            continue;
        }
        if (*at == '{' || *at == '[') depth++;
        if (*at == '}' || *at == ']') depth--;
        at++;
        if (!depth) return at;
    }
    return NULL;
}

/* Return where the value of a key begins in an object; NULL if it is not there. */
static const char *json_find(const char *object, const char *key) {
    const char *at = skip_space(object);
    if (*at != '{') return NULL;
    for (at = skip_space(at + 1); *at == '"'; at = skip_space(at + 1)) {
        const char *name = at + 1, *end = skip_string(at);
        if (!end) return NULL;
        at = skip_space(end);
        if (*at != ':') return NULL;
        at = skip_space(at + 1);
        if ((size_t)(end - 1 - name) == strlen(key) && !strncmp(name, key, strlen(key))) return at;
        if (!(at = skip_value(at))) return NULL;
        at = skip_space(at);
        if (*at != ',') return NULL;
    }
    return NULL;
}

static long long json_number(const char *object, const char *key, long long otherwise) {
    const char *at = json_find(object, key);
    return at && (*at == '-' || (*at >= '0' && *at <= '9')) ? strtoll(at, NULL, 10) : otherwise;
}

/* Copy a text value, and return whether it was there and fitted. Only the escapes of short texts are known. */
static int json_text(const char *object, const char *key, char *out, size_t size) {
    const char *at = json_find(object, key);
    size_t length = 0;
    if (!at || *at != '"') return 0;
    for (at++; *at && *at != '"'; at++) {
        char letter = *at;
        if (letter == '\\' && at[1]) letter = *++at == 'n' ? '\n' : *at == 't' ? '\t' : *at;
        if (length + 1 >= size) return 0;
        out[length++] = letter;
    }
    out[length] = 0;
    return *at == '"';
}

/* Return a number of the settings, which are flat TOML. */
static double setting(const char *settings, const char *name, double otherwise) {
    size_t length = strlen(name);
    for (const char *line = settings; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, name, length) && !strncmp(line + length, " = ", 3)) return atof(line + length + 3);
    return otherwise;
}

/* ---- the data */

typedef struct {
    int samples, *labels;
    float *x; /* samples × inputs */
} Part;

static int inputs, classes;
static Part train, test;

static void read_data(const char *path) {
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "r");
    if (!file) die("the data cannot be read");
    for (long number = 0; getline(&line, &room, file) > 0; number++) {
        Part *part = number % 4 == 3 ? &test : &train;
        int columns = 1;
        for (char *at = line; *at; at++) columns += *at == ',';
        if (inputs && columns != inputs + 1) die("the lines of the data differ in length");
        inputs = columns - 1;
        part->labels = realloc(part->labels, (part->samples + 1) * sizeof(int));
        part->x = realloc(part->x, (size_t)(part->samples + 1) * inputs * sizeof(float));
        if (!part->labels || !part->x) die("out of memory");
        char *at = line;
        part->labels[part->samples] = strtol(at, &at, 10);
        for (int i = 0; i < inputs; i++) part->x[(size_t)part->samples * inputs + i] = strtof(at + 1, &at);
        part->samples++;
    }
    free(line);
    fclose(file);
    if (!test.samples) die("the data have fewer than four samples");
}

/* ---- the model: logits = x · weight + bias */

typedef struct {
    float *weight, *bias; /* inputs × classes, and classes; both within one safetensors file */
} Model;

/* Write the class probabilities of a sample, and return its loss. */
static double predict(Model model, const float *x, int label, double *p) {
    double largest = -INFINITY, sum = 0;
    for (int c = 0; c < classes; c++) {
        p[c] = model.bias[c];
        for (int i = 0; i < inputs; i++) p[c] += (double)x[i] * model.weight[i * classes + c];
        if (p[c] > largest) largest = p[c];
    }
    for (int c = 0; c < classes; c++) sum += exp(p[c] - largest);
    double loss = largest + log(sum) - p[label];
    for (int c = 0; c < classes; c++) p[c] = exp(p[c] - largest) / sum;
    return loss;
}

/* Add scale · ∇f over some samples to a gradient. Return the mean loss. A batch of 0 is all samples, in order. */
static double gradient(Model model, int batch, double scale, Model into) {
    int count = batch ? batch : train.samples;
    double *p = allocate(classes * sizeof *p), loss = 0;
    for (int k = 0; k < count; k++) {
        int sample = batch ? rand() % train.samples : k;
        const float *x = train.x + (size_t)sample * inputs;
        loss += predict(model, x, train.labels[sample], p);
        p[train.labels[sample]] -= 1;
        for (int c = 0; c < classes; c++) {
            double slope = scale * p[c] / count;
            into.bias[c] += slope;
            for (int i = 0; i < inputs; i++) into.weight[i * classes + c] += slope * x[i];
        }
    }
    free(p);
    return loss / count;
}

static void add(Model to, double scale, Model from) {
    for (long k = 0; k < (long)inputs * classes; k++) to.weight[k] += scale * from.weight[k];
    for (int c = 0; c < classes; c++) to.bias[c] += scale * from.bias[c];
}

static double accuracy(Model model) {
    int right = 0;
    double *p = allocate(classes * sizeof *p);
    for (int k = 0; k < test.samples; k++) {
        int best = 0;
        predict(model, test.x + (size_t)k * inputs, test.labels[k], p);
        for (int c = 1; c < classes; c++)
            if (p[c] > p[best]) best = c;
        right += best == test.labels[k];
    }
    free(p);
    return (double)right / test.samples;
}

/* Find a float32 array in a safetensors file; NULL unless it has that many numbers within the file. */
static float *tensor(const char *header, unsigned char *data, long size, const char *name, long numbers) {
    const char *about = json_find(header, name);
    char dtype[8];
    long first, last;
    if (!about || !json_text(about, "dtype", dtype, sizeof dtype) || strcmp(dtype, "F32")) return NULL;
    const char *offsets = json_find(about, "data_offsets");
    if (!offsets || sscanf(offsets, "[%ld , %ld", &first, &last) != 2) return NULL;
    if (first < 0 || first % 4 || last > size || last - first != numbers * 4) return NULL;
    return (float *)(data + first);
}

/* Find the model in a safetensors file: 8 bytes with the header's length, the header, the numbers. */
static const char *read_model(unsigned char *file, long size, Model *model) {
    uint64_t length = 0;
    if (size < 8) return "the model is too short";
    for (int k = 7; k >= 0; k--) length = length << 8 | file[k];
    if (length > (uint64_t)size - 8 || length % 8) return "the model's header is too long";
    char *header = allocate(length + 1);
    memcpy(header, file + 8, length);
    const char *shape = json_find(header, "dense1.bias"), *wrong = NULL;
    if (!shape || !(shape = json_find(shape, "shape")) || sscanf(shape, "[%d", &classes) != 1 || classes < 2 ||
        classes > 10000)
        wrong = "the model has no dense1.bias";
    for (Part *part = &train; !wrong && part; part = part == &train ? &test : NULL)
        for (int k = 0; k < part->samples; k++)
            if (part->labels[k] < 0 || part->labels[k] >= classes) wrong = "this device has other labels";
    if (!wrong) {
        unsigned char *data = file + 8 + length;
        model->weight = tensor(header, data, size - 8 - (long)length, "dense1.weight", (long)inputs * classes);
        model->bias = tensor(header, data, size - 8 - (long)length, "dense1.bias", classes);
        if (!model->weight || !model->bias) wrong = "the model does not fit this device's data";
    }
    free(header);
    return wrong;
}

/* ---- what is going on (§ Order) */

static struct mosquitto *client;
static char federation[64] = "perfeds2", me[96], session[33], run[65], settings[65536], refusal[128];
static long long ticket = -1, version, answered = -1;
static int training;
static unsigned char key[32], expected[32];
static unsigned char *model_bytes, *arrived; /* the model's chunks so far; NULL while none is awaited */
static long model_size;
static char head[1024]; /* the last answer, to be repeated */
static unsigned char *update;
static long update_size;

static void publish(const char *topic, const void *data, long size) {
    mosquitto_publish(client, NULL, topic, size, data, 1, false);
}

static void say_here(void) {
    char topic[256], text[512];
    int length = snprintf(text, sizeof text, "{\"here\": true, \"session\": \"%s\", \"run\": \"%s\"", session, run);
    if (*refusal) length += snprintf(text + length, sizeof text - length, ", \"error\": \"%s\"", refusal);
    length += snprintf(text + length, sizeof text - length, "}");
    snprintf(topic, sizeof topic, "%s/here/%s", federation, me);
    publish(topic, text, length);
}

static void send_answer(void) {
    char topic[256];
    snprintf(topic, sizeof topic, "%s/reply/%s/%lld/head", federation, me, answered);
    publish(topic, head, strlen(head));
    for (long first = 0; first < update_size; first += CHUNK_BYTES) {
        long size = update_size - first < CHUNK_BYTES ? update_size - first : CHUNK_BYTES;
        snprintf(topic, sizeof topic, "%s/reply/%s/%lld/%ld", federation, me, answered, first / CHUNK_BYTES);
        publish(topic, update + first, size);
    }
}

static void forget_model(void) {
    char topic[256];
    snprintf(topic, sizeof topic, "%s/model/%lld/+", federation, version);
    if (model_bytes) mosquitto_unsubscribe(client, NULL, topic);
    free(model_bytes);
    free(arrived);
    model_bytes = arrived = NULL;
}

static void fail_job(const char *why) {
    free(update);
    update = NULL, update_size = 0, answered = ticket;
    snprintf(head, sizeof head, "{\"run\": \"%s\", \"version\": %lld, \"error\": \"%s\"}", run, version, why);
    send_answer();
}

/* Compute the answer to a job from the model (§ Answer): the sum of the gradients of the local steps, and metrics. */
static void do_job(unsigned char *file, long size) {
    Model model = {0}, total = {0};
    unsigned char *sum = allocate(size), digest[32];
    char sha256[65];
    clock_t began = clock();
    double beta = setting(settings, "beta", 0.1);
    int batch = (int)setting(settings, "batch", 32);
    const char *wrong = read_model(file, size, &model);
    if (wrong || batch < 1) {
        free(sum);
        fail_job(wrong ? wrong : "the batch is empty");
        return;
    }
    double scores[4]; /* loss and accuracy, before and after a personal step */
    unsigned char *one = allocate(size);
    Model own;
    memcpy(one, file, size);
    read_model(one, size, &own);
    scores[0] = gradient(model, 0, -setting(settings, "alpha", 0.03), own);
    scores[1] = accuracy(model);
    memcpy(sum, file, size); /* names and shapes of an update are the model's */
    read_model(sum, size, &total);
    add(total, -1, total);
    scores[2] = gradient(own, 0, 0, total); /* a scale of 0: only its loss */
    scores[3] = accuracy(own);
    for (int step = (int)setting(settings, "local-steps", 1); training && step > 0; step--) {
        add(own, -1, own); /* holds the gradient from here on */
        gradient(model, batch, 1, own);
        add(total, 1, own);
        add(model, -beta, own);
    }
    free(one);
    free(update);
    update = sum, update_size = training ? size : 0, answered = ticket;
    EVP_Digest(update, update_size, digest, NULL, EVP_sha256(), NULL);
    for (int k = 0; k < 32; k++) sprintf(sha256 + 2 * k, "%02x", digest[k]);
    int length = snprintf(head, sizeof head,
                          "{\"run\": \"%s\", \"version\": %lld, \"bytes\": %ld, \"sha256\": \"%s\", \"compute_s\": %.6f",
                          run, version, update_size, sha256, (double)(clock() - began) / CLOCKS_PER_SEC);
    if (isfinite(scores[0] + scores[2]))
        length += snprintf(head + length, sizeof head - length,
                           ", \"metrics\": {\"train_loss\": %.9g, \"test_accuracy\": %.9g, "
                           "\"train_loss_personal\": %.9g, \"test_accuracy_personal\": %.9g}",
                           scores[0], scores[1], scores[2], scores[3]);
    snprintf(head + length, sizeof head - length, "}");
    send_answer();
}

/* Decrypt with AES-256-GCM and a nonce of zeros (§ Encryption). Return the plain size, or -1 if the key is wrong. */
static long decrypt(unsigned char *data, long size) {
    unsigned char nonce[12] = {0};
    int done = 0, rest = 0;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int right = size > 16 && EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), NULL, key, nonce) &&
                EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, 16, data + size - 16) &&
                EVP_DecryptUpdate(context, data, &done, data, (int)size - 16) &&
                EVP_DecryptFinal_ex(context, data + done, &rest) > 0;
    EVP_CIPHER_CTX_free(context);
    return right ? done + rest : -1;
}

/* ---- messages */

static void take_run(const char *text) {
    char before[sizeof run], algorithm[64] = "";
    strcpy(before, run);
    *refusal = 0;
    if (!*text) { /* the run is over */
        forget_model();
        *run = 0, ticket = answered = -1;
        return;
    }
    if (!json_text(text, "run", run, sizeof run) || !json_text(text, "settings", settings, sizeof settings)) {
        strcpy(refusal, "the run cannot be read");
    } else if (strcmp(before, run)) { /* tickets begin again */
        forget_model();
        ticket = answered = -1;
    }
    const char *line = strstr(settings, "algorithm = \"");
    if (line) sscanf(line, "algorithm = \"%63[^\"]", algorithm);
    if (strncmp(algorithm, "FedAvg", 6)) strcpy(refusal, "this device knows FedAvg only");
    say_here();
}

static int read_hex(const char *object, const char *name, unsigned char *out) {
    char text[65];
    unsigned int byte;
    if (!json_text(object, name, text, sizeof text) || strlen(text) != 64) return 0;
    for (int k = 0; k < 32; k++) {
        if (sscanf(text + 2 * k, "%2x", &byte) != 1) return 0;
        out[k] = byte;
    }
    return 1;
}

static void take_job(const char *text) {
    char theirs[65], kind[16], topic[256];
    long long number = json_number(text, "ticket", -1);
    const char *cancelled = json_find(text, "cancelled");
    int is_cancelled = cancelled && !strncmp(cancelled, "true", 4);
    if (!json_text(text, "run", theirs, sizeof theirs) || strcmp(theirs, run) || !*run || *refusal) return;
    if (number >= 0 && number == answered) {
        send_answer(); /* the server did not get it */
        return;
    }
    if (number < ticket || (number == ticket && !is_cancelled)) return;
    if (!json_text(text, "kind", kind, sizeof kind) || (strcmp(kind, "train") && strcmp(kind, "evaluate"))) return;
    if (!read_hex(text, "key", key) || !read_hex(text, "sha256", expected)) return;
    forget_model();
    ticket = number, version = json_number(text, "version", 0), training = !strcmp(kind, "train");
    model_size = json_number(text, "bytes", 0);
    if (is_cancelled) {
        fail_job("cancelled");
    } else if (model_size <= 16 || model_size > MOST_BYTES) {
        fail_job("the model is larger than this device accepts");
    } else {
        model_bytes = allocate(model_size);
        arrived = allocate(model_size / CHUNK_BYTES + 1);
        snprintf(topic, sizeof topic, "%s/model/%lld/+", federation, version);
        mosquitto_subscribe(client, NULL, topic, 1);
    }
}

static void take_chunk(const char *numbers, const unsigned char *data, long size) {
    long long theirs, chunk;
    unsigned char digest[32];
    long chunks = (model_size + CHUNK_BYTES - 1) / CHUNK_BYTES;
    if (!model_bytes || sscanf(numbers, "%lld/%lld", &theirs, &chunk) != 2) return;
    if (theirs != version || chunk < 0 || chunk >= chunks) return;
    long room = model_size - chunk * CHUNK_BYTES;
    if (size != (room < CHUNK_BYTES ? room : CHUNK_BYTES)) return;
    memcpy(model_bytes + chunk * CHUNK_BYTES, data, size);
    arrived[chunk] = 1;
    for (long k = 0; k < chunks; k++)
        if (!arrived[k]) return;
    EVP_Digest(model_bytes, model_size, digest, NULL, EVP_sha256(), NULL);
    if (memcmp(digest, expected, 32)) { /* left over from an earlier run; the right chunks follow */
        memset(arrived, 0, chunks);
        return;
    }
    unsigned char *file = model_bytes;
    model_bytes = allocate(1); /* forget_model unsubscribes and frees it */
    forget_model();
    long plain = decrypt(file, model_size);
    if (plain < 0)
        fail_job("the model cannot be decrypted");
    else
        do_job(file, plain);
    free(file);
}

static void on_message(struct mosquitto *which, void *mine, const struct mosquitto_message *message) {
    (void)which, (void)mine;
    const char *rest = message->topic + strlen(federation) + 1; /* nothing else is subscribed to */
    if (!strncmp(rest, "model/", 6)) {
        take_chunk(rest + 6, message->payload, message->payloadlen);
        return;
    }
    char *text = allocate((size_t)message->payloadlen + 1); /* ends with a zero */
    if (message->payloadlen) memcpy(text, message->payload, message->payloadlen);
    if (!strcmp(rest, "run")) take_run(text);
    if (!strncmp(rest, "job/", 4)) take_job(text);
    free(text);
}

static void on_connect(struct mosquitto *which, void *mine, int refused) {
    char topic[256];
    (void)mine, (void)refused;
    snprintf(topic, sizeof topic, "%s/job/%s", federation, me);
    mosquitto_subscribe(which, NULL, topic, 1);
    snprintf(topic, sizeof topic, "%s/model/%lld/+", federation, version);
    if (model_bytes) mosquitto_subscribe(which, NULL, topic, 1);
    snprintf(topic, sizeof topic, "%s/run", federation);
    mosquitto_subscribe(which, NULL, topic, 1);
}

/* Connect with a new session, so that the last will of an old connection does not count (§ Presence). */
static int connect_again(const char *host, int port) {
    unsigned char random[16];
    char topic[256], text[128];
    RAND_bytes(random, sizeof random);
    for (int k = 0; k < 16; k++) sprintf(session + 2 * k, "%02x", random[k]);
    int length = snprintf(text, sizeof text, "{\"here\": false, \"session\": \"%s\"}", session);
    snprintf(topic, sizeof topic, "%s/here/%s", federation, me);
    mosquitto_will_set(client, topic, length, text, 1, false);
    return mosquitto_connect(client, host, port, KEEPALIVE_S);
}

int main(int count, char **given) {
    if (count < 8 || count > 9) die("usage: client HOST PORT CA CERTIFICATE KEY NUMBER DATA.csv [FEDERATION]");
    if (count == 9) snprintf(federation, sizeof federation, "%s", given[8]);
    int is_default = !strcmp(federation, "perfeds2");
    snprintf(me, sizeof me, "%s%sdevice-%d", is_default ? "" : federation, is_default ? "" : ".", atoi(given[6]));
    srand(atoi(given[6]) + 1);
    read_data(given[7]);
    mosquitto_lib_init();
    if (!(client = mosquitto_new(me, true, NULL))) die("out of memory");
    if (mosquitto_tls_set(client, given[3], NULL, given[4], given[5], NULL)) die("the certificates cannot be read");
    mosquitto_connect_callback_set(client, on_connect);
    mosquitto_message_callback_set(client, on_message);
    for (;;) {
        int error = connect_again(given[1], atoi(given[2]));
        while (!error) error = mosquitto_loop(client, 1000, 1);
        fprintf(stderr, "client: %s\n", mosquitto_strerror(error));
        sleep(1);
    }
}
