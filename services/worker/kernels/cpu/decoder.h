// The C interface of the compiled decoder: what Python describes once (a model) and for every iteration (a step).
//
// Theory of operation
// -------------------
// A step is one call: embedding, layers, head. Its rows are cut into passes of at most PASS_ROWS, so that buffers stay
// small; a later pass finds the keys and values of an earlier one in the pool. All threads run the same program
// (program.cpp), phase by phase; within a phase they take numbered units of work until none is left (team.cpp). Which
// thread computes a unit changes no bit of it. Of the last layer, rows that get no logits take part until their keys and
// values are kept: for a prompt's prefill the rest of that layer is one row.
//
// Where the next iterations are known to be decodes of the same rows, or of fewer, and nothing but their logits says
// which token comes next, one call computes several: what lies between two calls takes longer than a small model's layer.
//
// Every number is added up in an order that depends on nothing but the shapes of the model: a row has the same bits
// in every batch, whether its position is computed by a prefill, a chunk or a decode, on any number of threads.
//
// Memory is Python's: weights, tables, pool and results are pointers that stay valid; only scratch is made here.
#pragma once
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// A linear layer, y = x W^T + b. Weights are packed into panels of 64 outputs: word k of output n is
// packed[(n / 64) * words * 64 + k * 64 + n % 64]; a word holds 2 bfloat16 inputs or 1 float32; missing ones are 0.
// With AVX2 the words of a panel are cut into pieces (products.h, even_piece), and each piece has its words of 16 outputs
// after those of the 16 before (copy_output).
// With int8 weights, `quantized` is there instead: of word k, [k * 64 * numbers of a word]: in groups of 16 outputs the
// first numbers of their words, then the second ones. Each stands for itself times its output's scale.
//
// bfloat16 weights may be coded (coding.cpp): their lower bytes as they are, and of their upper bytes, sign and most of
// the exponent, which of 16 it is. Hardly a number of a panel has another one than its 16 most frequent; a word of which
// an output has stands among `whole`. So three quarters of the bytes are read, and no number is another one.
struct Coded {
  const uint8_t* bytes;        // [panels, words, CODED_BYTES]: 128 lower bytes, then 64 pairs of codes; null: not coded
  const uint8_t* upper_bytes;  // [panels, 16]
  const int64_t* first_whole;  // [panels]: where a panel begins in the next two
  const int32_t* whole_at;     // of each panel the words that are not coded, rising, and one beyond all
  const uint32_t* whole;       // [.., 64]
};
constexpr int64_t CODED_BYTES = 192;

struct Matrix {
  const uint32_t* packed;
  const int8_t* quantized;
  Coded coded;
  const float* scales;  // padded to whole panels, or null
  const float* bias;  // padded to whole panels, or null
  int64_t outputs;
  int64_t inputs;
};

// Both are padded with 0 to a multiple of 64.
struct Norm {
  const float* weight;  // null: there is no norm
  const float* bias;    // null: by the root mean square alone; else the mean is taken off first
};

struct Layer {
  Matrix query_key_value;
  Matrix attention_output;
  Matrix up;  // with gates each panel has 32 rows of them, then the same 32 of up
  Matrix down;
  Norm attention_norm;
  Norm feed_forward_norm;
  const float* query_norm;  // one head's, or null
  const float* key_norm;
  int64_t window;  // sliding window in tokens, or 0
};

struct Decoder {
  int64_t is_bfloat16;  // else float32: weights, pool and what is multiplied; sums are float32 always
  int64_t hidden_size;
  int64_t embedding_size;  // of a token's embedding, which is projected if it is not the hidden size
  int64_t intermediate_size;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t vocabulary;
  int64_t first_logit;  // the token of the head's first row
  int64_t layer_count;
  int64_t activation;  // 0 silu, 1 gelu, 2 gelu by tanh, 3 relu
  int64_t gated;       // what is activated is the gates, which are multiplied with up; else up itself
  int64_t norms_after;  // norms come after attention and feed-forward were added, else before these
  int64_t threads;
  const Layer* layers;
  const uint16_t* embedding;  // [vocabulary, embedding_size] of weights, or null: the head's panels hold all tokens, in
                              // order and around the end of the vocabulary, of which its outputs are the first ones
  const uint16_t* positions;  // [positions, hidden], what is added to the embeddings; or null
  Matrix project_in;          // no weights: none
  Matrix project_out;
  Matrix head;  // its outputs are the tokens that this rank gives a logit
  Norm norm;
  const float* cosines;  // [rows, head_size / 2]; null: heads are not turned
  const float* sines;
  float epsilon;
};

// How a job's tokens are drawn (sampling/draws.py, sampling/sampler.py).
struct Draw {
  float temperature;  // 0: no draw, the token with the greatest logit, the first of several
  float least_nats;   // of min-p: logits that are further below the greatest, over the temperature, are cut
  int64_t top_k;      // 0: all
  double top_p;       // 1: all
  uint64_t stream;
  int64_t number;  // of the output token
};

// What changes a row of logits before a token is chosen: bias, then penalties for the tokens that the job has seen. A
// chosen token counts as seen from the next iteration on.
struct Adjustment {
  const int64_t* bias_ids;
  const float* biases;
  int64_t bias_count;
  int64_t* seen_ids;   // different ones, of prompt and output, with room for one of each iteration; null: no penalties
  float* seen_counts;  // how often each is in the output
  int64_t seen_count;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  float unused;
};

struct Step {
  const int64_t* token_ids;      // [rows], not read if hidden_in is there
  const int64_t* positions;      // [rows]
  const int64_t* rope_rows;      // [rows] of the tables
  const int64_t* block_table;    // [sequences, table_width]
  const int64_t* context_lengths;  // [sequences]: a sequence's rows are the last ones of its context
  const int64_t* logit_rows;     // [logit_count], rising
  int64_t rows;
  int64_t sequences;
  int64_t table_width;
  int64_t logit_count;
  void* pool;  // [blocks, layers, 2, block_size, kv_heads, head_size]
  int64_t block_size;
  int64_t pool_layers;
  int64_t first_layer;  // a stage computes layers first_layer to stop_layer - 1
  int64_t stop_layer;
  const float* hidden_in;  // [rows, hidden_size], or null: embeds token_ids
  float* hidden_out;       // [rows, hidden_size], or null
  float* logits;           // [logit_count, outputs of the head], or null
  const int32_t* given_up;  // the step is cut before the next layer once this is not 0; may be null
  int64_t deadline_ns;      // and once CLOCK_MONOTONIC is later; 0: never
  int32_t (*goes_on)();     // and once this returns 0; may be null
  // Adds up the ranks' parts of a product, in place; 0 if it could not, which cuts the step. null: one rank.
  int32_t (*sum)(float* values, int64_t count);
  // How many iterations, each of which goes on from the tokens that the one before chose; 0: one, that chooses none.
  // More than one are of decodes that all get logits; positions, rope_rows and context_lengths then have
  // [iterations, rows] numbers.
  int64_t iterations;
  const int64_t* rows_left;    // [iterations], falling: of several, the first so many rows take part
  const int64_t* last_tokens;  // [last_token_count]: an iteration that chooses one of them is the last
  int64_t last_token_count;
  const Draw* draws;  // [logit_count], those of the first iteration; or null: every token is the likeliest
  Adjustment* adjustments;  // [logit_count], or null
  int64_t* chosen;    // [iterations, logit_count]
  int64_t* ended_ns;  // [iterations]: CLOCK_MONOTONIC at its end
};

struct Engine;

// The last instruction set that this processor has; it has those before as well: 0 none that serves, 1 AVX2, 2 AVX-512,
// 3 AVX-512 with bfloat16, 4 that and AMX with bfloat16.
int fastserve_last_instruction_set();

// The one that multiplies most.
int fastserve_best_instruction_set();

// An engine that computes with this instruction set, or null if there is no memory or no such instruction set.
// `decoder` and what it points at must outlive it.
Engine* fastserve_engine(const Decoder* decoder, int instruction_set);
void fastserve_close(Engine* engine);

// Returns 0, or 1 if the step was cut: keys and values of its rows may be written in part. Of several iterations,
// ended_ns tells which were reached: it is left as it was for the others.
int fastserve_step(Engine* engine, const Step* step);

// chosen[i] = the next token of row i of the logits [rows, vocabulary], as a step chooses it. `scratch` has room for
// 8 bytes a token of the vocabulary.
void fastserve_draw(int instruction_set, const float* logits, int64_t rows, int64_t vocabulary, const Draw* draws,
                    void* scratch, int64_t* chosen);

// Codes a panel of bfloat16 weights: fills bytes [words, CODED_BYTES], upper_bytes [16] and whole_at with those words
// that can't be. Returns how many these are.
int64_t fastserve_code(const uint32_t* panel, int64_t words, uint8_t* bytes, uint8_t* upper_bytes, int32_t* whole_at);

// Units of work, of all steps so far, that a thread took over from one that had lost its core.
int64_t fastserve_taken_over(const Engine* engine);
}
#pragma GCC visibility pop
