// The program of a step, compiled once for each instruction set (INSTRUCTION_SET names it).
//
// No header of the standard library that defines code is included: the linker might keep this file's copy of it, with
// instructions that another processor lacks.
#include "attention.h"
#include "coded.h"
#include "engine.h"
#include "scratch.h"

#define JOIN(a, b) a##b
#define NAMED(prefix, set) JOIN(prefix, set)

namespace INSTRUCTION_SET {

template <class T>
class Thread {
 public:
  Thread(Engine& engine, int thread)
      : engine_(engine), d_(*engine.decoder), step_(*engine.step), thread_(thread),
        place_(team_place(engine.team, thread)), s_(d_, engine.memory, thread, &scratch_bytes_) {}

  void run() {
    for (int64_t iteration = 0; run_passes() && step_.iterations > 0;) {
      choose(iteration);
      if (iteration >= __atomic_load_n(&engine_.last_iteration, __ATOMIC_ACQUIRE)) return;
      go_on(++iteration);
    }
  }

 private:
  // False: it was cut.
  bool run_passes() {
    int64_t logit = 0;
    for (int64_t row = 0; row < step_.rows; row += PASS_ROWS) {
      pass_ = {row, least(PASS_ROWS, step_.rows - row), logit, 0, false};
      while (logit < step_.logit_count && step_.logit_rows[logit] < row + pass_.rows) ++logit;
      pass_.logits = logit - pass_.first_logit;
      if (!run_pass()) return false;
    }
    return true;
  }

  // --- several iterations -------------------------------------------------------------------------------------------

  // The tokens of an iteration that has been computed. One of the last tokens makes it the last.
  void choose(int64_t iteration) {
    const int64_t outputs = d_.head.outputs;
    if (step_.logit_count > 0) {
      each(step_.logit_count, [&](int64_t row) {
        float* logits = step_.logits + row * outputs;
        if (step_.adjustments != nullptr) adjust(logits, step_.adjustments[row]);
        step_.chosen[row] = step_.draws == nullptr
                                ? place_of_greatest(logits, outputs)
                                : drawn_token(logits, outputs, step_.draws[row], iteration, s_.weighed);
        if (step_.adjustments != nullptr) count_as_seen(&step_.adjustments[row], step_.chosen[row]);
      });
    }
    each(1, [&](int64_t) {
      step_.ended_ns[iteration] = monotonic_ns();
      for (int64_t row = 0; row < step_.logit_count; ++row) {
        for (int64_t last = 0; last < step_.last_token_count; ++last) {
          if (step_.chosen[row] == step_.last_tokens[last]) {
            __atomic_store_n(&engine_.last_iteration, iteration, __ATOMIC_RELEASE);
          }
        }
      }
    });
  }

  // To this iteration's tokens and places.
  void go_on(int64_t iteration) {
    const int64_t rows = engine_.step->rows;
    step_.rows = step_.sequences = step_.logit_count = step_.rows_left[iteration];
    step_.token_ids = step_.chosen;
    step_.chosen += rows;
    step_.positions += rows;
    step_.rope_rows += rows;
    step_.context_lengths += rows;
  }

  // --- one iteration ------------------------------------------------------------------------------------------------

  bool run_pass() {
    each(1, [&](int64_t) { cut(pass_.rows, [](int64_t row) { return row; }); });
    if (step_.hidden_in != nullptr) take_rows(); else embed_rows();
    for (int64_t layer = step_.first_layer; layer < step_.stop_layer; ++layer) {
      ask();
      if (is_cut()) return false;
      run_layer(d_.layers[layer], layer);
    }
    if (is_cut()) return false;
    if (step_.hidden_out != nullptr) leave_rows();
    if (step_.logits != nullptr && pass_.logits > 0) head();
    return true;
  }

  void run_layer(const Layer& layer, int64_t number) {
    ready_rows(layer.attention_norm);
    const Matrix& inward = layer.query_key_value;
    product(inward, layer.attention_output, s_.normed, pass_.rows, [&](int64_t row, int64_t output, const float* y) {
      float* to = s_.projected + row * padded(inward.outputs) + output;
      for (int64_t at = 0; at < PANEL; at += LANES) store(to + at, load(y + at));
    });
    turn_and_keep(layer, number);
    const bool narrows = step_.hidden_out == nullptr && number + 1 == step_.stop_layer && pass_.logits < pass_.rows;
    if (narrows && !narrow_attention()) return;
    attend_all(layer, number);
    if (narrows) gather_logit_rows();
    add_product(layer.attention_output, layer.up, s_.found);
    if (is_cut()) return;
    if (d_.norms_after) settle_rows(layer.attention_norm);
    ready_rows(layer.feed_forward_norm);
    activate_product(layer.up, layer.down);
    add_product(layer.down, first_after(number), s_.gated);
    if (d_.norms_after) settle_rows(layer.feed_forward_norm);
  }

  const Matrix& first_of_all() const { return d_.layers[step_.first_layer].query_key_value; }

  // What is multiplied with first after a layer; after the last one that may be by the next iteration.
  const Matrix& first_after(int64_t layer) const {
    if (layer + 1 < step_.stop_layer) return d_.layers[layer + 1].query_key_value;
    return step_.logits != nullptr ? d_.head : first_of_all();
  }

  // What the last layer makes of a row without logits nobody reads, once its keys and values are kept. False: there is
  // no row left.
  bool narrow_attention() {
    if (pass_.logits == 0) return false;
    each(1, [&](int64_t) { cut(pass_.logits, [this](int64_t number) { return logit_row(number); }); });
    return true;
  }

  // From here on the pass has the rows with logits alone, side by side.
  void gather_logit_rows() {
    each(1, [&](int64_t) {
      const int64_t size = padded(d_.hidden_size), found_size = padded(d_.heads * d_.head_size);
      for (int64_t number = 0; number < pass_.logits; ++number) {
        const int64_t row = logit_row(number);
        if (row == number) continue;
        std::memcpy(s_.hidden + number * size, s_.hidden + row * size, size * sizeof(float));
        std::memcpy(s_.found + number * found_size, s_.found + row * found_size, found_size * sizeof(T));
      }
    });
    pass_.rows = pass_.logits;
    pass_.is_gathered = true;
  }

  // The row of the pass that gets this one of its logits.
  int64_t logit_row(int64_t number) const {
    return pass_.is_gathered ? number : step_.logit_rows[pass_.first_logit + number] - pass_.first_row;
  }

  // Asked by the caller's thread. The others may hear of it a layer later; but ranks that add up stop together.
  void ask() {
    if (step_.sum != nullptr) {
      by_caller([&] { if (!step_goes_on(&step_)) cut_step(); });
    } else if (thread_ == 0 && !step_goes_on(&step_)) {
      cut_step();
    }
  }

  void cut_step() { __atomic_store_n(&engine_.cut, 1, __ATOMIC_RELEASE); }
  bool is_cut() const { return __atomic_load_n(&engine_.cut, __ATOMIC_ACQUIRE) != 0; }

  // --- phases -------------------------------------------------------------------------------------------------------

  // Units that write as they go.
  template <class Work>
  void each(int64_t count, Work work) {
    const int64_t share = greatest(1, count / (16 * d_.threads)), units = (count + share - 1) / share;
    for (int64_t unit; (unit = team_take(engine_.team, &place_, units, false)) >= 0;) {
      for (int64_t one = unit * share, stop = least(one + share, count); one < stop; ++one) work(one);
      team_done(engine_.team, &place_);
    }
  }

  template <class Work>
  void by_caller(Work work) {
    if (thread_ == 0) {
      each(1, [&](int64_t) { work(); });
    } else {
      team_wait(engine_.team, &place_);
    }
  }

  // --- products -----------------------------------------------------------------------------------------------------

  // y = x W^T + b, a panel of a few rows at a time; `use` gets the row, the first output and the 64 numbers. `then` is
  // what the next product multiplies with.
  template <class Use>
  void product(const Matrix& matrix, const Matrix& then, const T* x, int64_t rows, Use use) {
    const int64_t words = words_of<T>(matrix.inputs), x_step = words_of<T>(padded(matrix.inputs));
    const int64_t panels = padded(matrix.outputs) / PANEL;
    const bool is_coded = matrix.coded.bytes != nullptr;
    const int64_t unit_rows = is_coded ? CODED_UNIT_ROWS : matrix.quantized != nullptr ? QUANTIZED_UNIT_ROWS : UNIT_ROWS;
    const int64_t row_units = (rows + unit_rows - 1) / unit_rows, tiles = (rows + SHARED_ROWS<T> - 1) / SHARED_ROWS<T>;
    const uint32_t* x_words = reinterpret_cast<const uint32_t*>(x);
    for (int64_t unit; (unit = team_take(engine_.team, &place_, panels * row_units, true)) >= 0;) {
      const int64_t panel = unit / row_units, part = unit % row_units;
      // Whole tiles, or pairs of them, but for the last.
      const int64_t begin = tiles * part / row_units * SHARED_ROWS<T>;
      const int64_t stop = least(tiles * (part + 1) / row_units * SHARED_ROWS<T>, rows);
      const uint32_t* from = x_words + begin * x_step;
      const void* here = panel_of(matrix, panel);
      // As long as the threads take turns, this thread's next unit.
      const int64_t next = (unit + d_.threads) / row_units;
      const void* after = next < panels ? panel_of(matrix, next) : panel_of(then, next - panels);
      if (is_coded) {
        const CodedPanel coded = coded_panel(matrix.coded, panel, words);
        times_coded_panel(from, x_step, stop - begin, coded, words, after, s_.piece, s_.sums);
      } else if (matrix.quantized != nullptr) {
        times_quantized_panel<T>(from, x_step, stop - begin, static_cast<const int8_t*>(here), words, after, s_.piece,
                                 s_.sums);
      } else {
        const uint32_t* panel_words = static_cast<const uint32_t*>(here);
        times_panel<T, OfWeights>(from, x_step, stop - begin, panel_words, words, after, true, s_.sums, s_.piece);
      }
      if (!team_keep(engine_.team, &place_)) continue;
      for (int64_t row = begin; row < stop; ++row) {
        float* y = s_.sums + (row - begin) * PANEL;
        if (matrix.scales != nullptr) {
          const float* scales = matrix.scales + panel * PANEL;
          for (int64_t at = 0; at < PANEL; at += LANES) store(y + at, load(y + at) * load(scales + at));
        }
        if (matrix.bias != nullptr) {
          const float* bias = matrix.bias + panel * PANEL;
          for (int64_t at = 0; at < PANEL; at += LANES) store(y + at, load(y + at) + load(bias + at));
        }
        use(row, panel * PANEL, y);
      }
      team_done(engine_.team, &place_);
    }
  }

  static const void* panel_of(const Matrix& matrix, int64_t panel) {
    const int64_t words = panel * words_of<T>(matrix.inputs), before = words * PANEL;
    if (matrix.coded.bytes != nullptr) return matrix.coded.bytes + words * CODED_BYTES;
    if (matrix.quantized != nullptr) return matrix.quantized + before * WORD_NUMBERS<T>;
    return matrix.packed + before;
  }

  // gated = activation of the gates times up, or activation of up.
  void activate_product(const Matrix& up, const Matrix& then) {
    const Activation activation = static_cast<Activation>(d_.activation);
    const int64_t size = padded(d_.intermediate_size), kept = d_.gated ? PANEL / 2 : PANEL;
    product(up, then, s_.normed, pass_.rows, [&](int64_t row, int64_t output, const float* y) {
      T* to = s_.gated + row * size + output * kept / PANEL;
      for (int64_t at = 0; at < kept; at += LANES) {
        const Vector active = activated(activation, load(y + at));
        store_rounded(to + at, d_.gated ? active * load(y + PANEL / 2 + at) : active);
      }
    });
  }

  // hidden += x W^T + b, the ranks' parts of it added up.
  void add_product(const Matrix& matrix, const Matrix& then, const T* x) {
    const int64_t size = padded(d_.hidden_size);
    if (step_.sum == nullptr) {
      product(matrix, then, x, pass_.rows, [&](int64_t row, int64_t output, const float* y) {
        float* to = s_.hidden + row * size + output;
        for (int64_t at = 0; at < PANEL; at += LANES) store(to + at, load(to + at) + load(y + at));
      });
      return;
    }
    float* parts = s_.projected;
    product(matrix, then, x, pass_.rows, [&](int64_t row, int64_t output, const float* y) {
      std::memcpy(parts + row * d_.hidden_size + output, y, least(PANEL, d_.hidden_size - output) * sizeof(float));
    });
    by_caller([&] {
      if (step_.sum(parts, pass_.rows * d_.hidden_size) == 0) cut_step();
    });
    each(pass_.rows, [&](int64_t row) {
      for (int64_t at = 0; at < d_.hidden_size; ++at) s_.hidden[row * size + at] += parts[row * d_.hidden_size + at];
    });
  }

  // --- rows ---------------------------------------------------------------------------------------------------------

  float* hidden_row(int64_t row) { return s_.hidden + row * padded(d_.hidden_size); }

  // An earlier row here may have been beyond all numbers, and so its padding: infinity times 0.
  void clear_padding(float* row) {
    std::memset(row + d_.hidden_size, 0, (padded(d_.hidden_size) - d_.hidden_size) * sizeof(float));
  }

  void take_rows() {
    each(pass_.rows, [&](int64_t row) {
      clear_padding(hidden_row(row));
      std::memcpy(hidden_row(row), step_.hidden_in + (pass_.first_row + row) * d_.hidden_size,
                  d_.hidden_size * sizeof(float));
    });
  }

  void embed_rows() {
    const bool projects = d_.project_in.inputs != 0;
    each(pass_.rows, [&](int64_t row) {
      T* embedded = s_.embedded + row * padded(d_.embedding_size);
      find_embedding(step_.token_ids[pass_.first_row + row], embedded);
      if (projects) return;
      clear_padding(hidden_row(row));
      widen(embedded, d_.hidden_size, hidden_row(row));
      add_position(row);
    });
    if (!projects) return;
    const int64_t rows = pass_.rows;
    product(d_.project_in, first_of_all(), s_.embedded, rows, [&](int64_t row, int64_t output, const float* y) {
      std::memcpy(hidden_row(row) + output, y, PANEL * sizeof(float));
    });
    each(pass_.rows, [&](int64_t row) {
      clear_padding(hidden_row(row));
      add_position(row);
    });
  }

  void find_embedding(int64_t token, T* to) {
    if (d_.embedding != nullptr) {
      const T* from = reinterpret_cast<const T*>(d_.embedding) + token * d_.embedding_size;
      std::memcpy(to, from, d_.embedding_size * sizeof(T));
      return;
    }
    const int64_t words = words_of<T>(d_.embedding_size);
    const int64_t place = (token - d_.first_logit + d_.vocabulary) % d_.vocabulary;
    // The last word may be half a word: what is written beyond the row is padding, and 0.
    if (d_.head.coded.bytes != nullptr) {
      decode_output(coded_panel(d_.head.coded, place / PANEL, words), words, place % PANEL, to);
      return;
    }
    copy_output(d_.head.packed + place / PANEL * words * PANEL, words, place % PANEL, to);
  }

  void add_position(int64_t row) {
    if (d_.positions == nullptr) return;
    const T* table = reinterpret_cast<const T*>(d_.positions);
    add_widened(table + step_.positions[pass_.first_row + row] * d_.hidden_size, d_.hidden_size, hidden_row(row));
  }

  void leave_rows() {
    const int64_t size = padded(d_.hidden_size);
    each(pass_.rows, [&](int64_t row) {
      std::memcpy(step_.hidden_out + (pass_.first_row + row) * d_.hidden_size, s_.hidden + row * size,
                  d_.hidden_size * sizeof(float));
    });
  }

  // normed = what attention or feed-forward begins with: hidden after its norm, or as it is.
  void ready_rows(const Norm& norm) {
    const int64_t size = padded(d_.hidden_size);
    each(pass_.rows, [&](int64_t row) {
      if (d_.norms_after) {
        convert(hidden_row(row), size, s_.normed + row * size);
      } else {
        norm_by(norm, hidden_row(row), d_.hidden_size, d_.epsilon, s_.normed + row * size);
      }
    });
  }

  // hidden = what comes out of attention or feed-forward: its norm.
  void settle_rows(const Norm& norm) {
    each(pass_.rows, [&](int64_t row) { norm_by(norm, hidden_row(row), d_.hidden_size, d_.epsilon, hidden_row(row)); });
  }

  void head() {
    const int64_t size = padded(d_.hidden_size), narrow = padded(d_.embedding_size);
    each(pass_.logits, [&](int64_t number) {
      const float* hidden = hidden_row(logit_row(number));
      if (d_.norm.weight != nullptr) {
        norm_by(d_.norm, hidden, d_.hidden_size, d_.epsilon, s_.normed + number * size);
      } else {
        convert(hidden, size, s_.normed + number * size);
      }
    });
    const T* ready = s_.normed;
    if (d_.project_out.inputs != 0) {
      product(d_.project_out, d_.head, s_.normed, pass_.logits, [&](int64_t row, int64_t output, const float* y) {
        convert(y, least(PANEL, d_.embedding_size - output), s_.embedded + row * narrow + output);
      });
      ready = s_.embedded;
    }
    product(d_.head, first_of_all(), ready, pass_.logits, [&](int64_t row, int64_t output, const float* y) {
      float* to = step_.logits + (pass_.first_logit + row) * d_.head.outputs + output;
      std::memcpy(to, y, least(PANEL, d_.head.outputs - output) * sizeof(float));
    });
  }

  // Norms and turns queries and keys, and writes keys and values into the pool.
  void turn_and_keep(const Layer& layer, int64_t number) {
    const int64_t width = padded(layer.query_key_value.outputs), size = d_.head_size, half = size / 2;
    const int64_t query_step = padded(d_.heads * size), table_rows = step_.block_size;
    float scratch[MOST_HEAD_SIZE];
    each(pass_.rows, [&](int64_t row) {
      const int64_t from_start = pass_.first_row + row;
      const int64_t angles = step_.rope_rows[from_start] * half;
      float* heads = s_.projected + row * width;
      for (int64_t head = 0; head < d_.heads + d_.kv_heads; ++head) {
        const float* weight = head < d_.heads ? layer.query_norm : layer.key_norm;
        if (weight != nullptr) norm_head(heads + head * size, weight, size, d_.epsilon, scratch);
        if (d_.cosines != nullptr) rotate_head(heads + head * size, d_.cosines + angles, d_.sines + angles, half);
      }
      convert(heads, d_.heads * size, s_.queries + row * query_step);
      const int64_t kv_size = d_.kv_heads * size;
      T* page = reinterpret_cast<T*>(step_.pool) +
                ((block_of(row) * step_.pool_layers + number) * 2 * table_rows +
                 step_.positions[from_start] % table_rows) * kv_size;
      convert(heads + d_.heads * size, kv_size, page);
      convert(heads + d_.heads * size + kv_size, kv_size, page + table_rows * kv_size);
    });
  }

  int64_t block_of(int64_t row) {
    const int64_t position = step_.positions[pass_.first_row + row];
    return step_.block_table[sequence_of(row) * step_.table_width + position / step_.block_size];
  }

  // The units are in the order of their rows.
  int64_t sequence_of(int64_t row) {
    int64_t low = 0, high = engine_.query_units;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (s_.units[middle].first_row <= row) low = middle; else high = middle;
    }
    return s_.units[low].sequence;
  }

  // --- attention ----------------------------------------------------------------------------------------------------

  // Finds the units of `count` rows of the pass, of which `row_of` gives each in rising order.
  template <class RowOf>
  void cut(int64_t count, RowOf row_of) {
    const int64_t most_rows = greatest(1, UNIT_QUERIES / (d_.heads / d_.kv_heads));
    const int64_t units = cut_into_units(step_, pass_.first_row, count, most_rows, row_of, s_.units);
    int64_t decodes = 0;
    while (decodes < units && s_.units[decodes].row_count == 1) ++decodes;
    engine_.query_units = units;
    engine_.decode_units = decodes;
  }

  // What a thread attends to at once: one kv head of several rows, or several heads of a decode.
  struct AttentionUnit {
    QueryRows rows;
    int64_t head;
    int64_t heads;
  };

  // The last units of a prefill look at most, so they go first.
  void attend_all(const Layer& layer, int64_t number) {
    const AttentionOfLayer<T> all_units{d_, layer.window, s_.queries, s_.found, padded(d_.heads * d_.head_size)};
    const int64_t query_units = engine_.query_units, decodes = engine_.decode_units;
    const int64_t most_heads = heads_of_decode(), parts = (d_.kv_heads + most_heads - 1) / most_heads;
    const int64_t of_prefills = (query_units - decodes) * d_.kv_heads, units = of_prefills + decodes * parts;
    const auto unit_of = [&](int64_t one) -> AttentionUnit {
      if (one < of_prefills) return {s_.units[query_units - 1 - one / d_.kv_heads], one % d_.kv_heads, 1};
      const int64_t decode = (one - of_prefills) / parts, head = (one - of_prefills) % parts * most_heads;
      return {s_.units[decode], head, least(most_heads, d_.kv_heads - head)};
    };
    for (int64_t one; (one = team_take(engine_.team, &place_, units, true)) >= 0;) {
      const AttentionUnit own = unit_of(one), likely = unit_of(least(one + d_.threads, units - 1));
      if (!team_has(engine_.team, &place_)) continue;
      UnitOfAttention<T> unit(all_units, {own.rows, pages_of(number, own)}, own.head, own.heads, s_.attention);
      unit.attend({likely.rows, pages_of(number, likely)});
      if (!team_keep(engine_.team, &place_)) continue;
      unit.write();
      team_done(engine_.team, &place_);
    }
  }

  Pages<T> pages_of(int64_t layer, const AttentionUnit& unit) const {
    const int64_t kv_size = d_.kv_heads * d_.head_size, layer_step = 2 * step_.block_size * kv_size;
    return {reinterpret_cast<const T*>(step_.pool) + layer * layer_step + unit.head * d_.head_size,
            step_.block_table + unit.rows.sequence * step_.table_width, step_.block_size,
            step_.pool_layers * layer_step, kv_size};
  }

  // Heads of a unit: as many as leave two units for every thread.
  int64_t heads_of_decode() {
    const int64_t share = engine_.decode_units * d_.kv_heads / (2 * d_.threads);
    return least(least(greatest(1, share), d_.kv_heads), greatest(1, UNIT_QUERIES / (d_.heads / d_.kv_heads)));
  }

  Engine& engine_;
  const Decoder& d_;
  Step step_;  // this thread's: of several iterations, the one that is computed
  const int thread_;
  Place place_;
  int64_t scratch_bytes_;
  Scratch<T> s_;
  Pass pass_;
};

template <class T>
static int64_t scratch_bytes(const Decoder* decoder) {
  int64_t bytes;
  Scratch<T>(*decoder, nullptr, 0, &bytes);
  return bytes;
}

}  // namespace INSTRUCTION_SET

using namespace INSTRUCTION_SET;

int64_t NAMED(scratch_bytes_, INSTRUCTION_SET)(const Decoder* decoder) {
  return decoder->is_bfloat16 ? scratch_bytes<Bfloat16>(decoder) : scratch_bytes<float>(decoder);
}

void NAMED(run_, INSTRUCTION_SET)(void* context, int thread) {
  Engine& engine = *static_cast<Engine*>(context);
  if (engine.decoder->is_bfloat16) {
    Thread<Bfloat16>(engine, thread).run();
  } else {
    Thread<float>(engine, thread).run();
  }
#if defined(WITH_TILES)
  release_tiles();
#endif
}

void NAMED(draw_, INSTRUCTION_SET)(const float* logits, int64_t rows, int64_t vocabulary, const Draw* draws,
                                   void* scratch, int64_t* chosen) {
  for (int64_t row = 0; row < rows; ++row) {
    chosen[row] = drawn_token(logits + row * vocabulary, vocabulary, draws[row], 0, static_cast<Weighed*>(scratch));
  }
}

#if defined(__AVX512BF16__) && !defined(WITH_TILES)
// Nanoseconds for some products of which none waits for another.
template <class PlusProduct>
static int64_t time_of(PlusProduct plus_product) {
  constexpr int STEPS = 200, SUMS = 12;
  Vector sums[SUMS];
  for (Vector& sum : sums) sum = zeros();
  const int64_t begin = monotonic_ns();
  for (int step = 0; step < STEPS; ++step) {
    for (Vector& sum : sums) sum = computed_here(plus_product(sum));
  }
  return monotonic_ns() - begin;
}

// A word is one product of pairs, or two of single numbers. The best of many short times, in turn: others run here, too.
bool pairs_are_quicker() {
  constexpr int ROUNDS = 50;
  const Words ones = all_words(0x3f803f80);
  int64_t pairs_ns = INT64_MAX, singles_ns = INT64_MAX;
  for (int round = 0; round < ROUNDS; ++round) {
    pairs_ns = least(pairs_ns, time_of([&](Vector sum) { return plus_pairs(sum, ones, ones); }));
    singles_ns = least(singles_ns, time_of([&](Vector sum) {
      return multiply_add(as_vector(ones), as_vector(ones), sum);
    }));
  }
  return pairs_ns < 2 * singles_ns;
}
#endif

#if defined(WITH_TILES)
bool tiles_multiply() {
  constexpr int64_t ROWS = 17, WORDS = TILE_DEPTH + 3;  // a tile and a rest of both
  uint32_t x[ROWS * WORDS], panel[WORDS * PANEL];
  float sums[ROWS * PANEL];
  const auto first = [](int64_t at) { return static_cast<float>(at * 7 % 9 - 4); };
  const auto second = [](int64_t at) { return static_cast<float>(at * 5 % 11 - 5); };
  const auto word = [](float low, float high) {
    uint32_t bits[2];
    std::memcpy(&bits[0], &low, sizeof(low));
    std::memcpy(&bits[1], &high, sizeof(high));
    return bits[0] >> 16 | (bits[1] & 0xffff0000u);
  };
  for (int64_t at = 0; at < ROWS * WORDS; ++at) x[at] = word(first(at), second(at));
  for (int64_t at = 0; at < WORDS * PANEL; ++at) panel[at] = word(second(at), first(at));
  times_panel<Bfloat16>(x, WORDS, ROWS, panel, WORDS, nullptr, true, sums);
  release_tiles();
  for (int64_t row = 0; row < ROWS; ++row) {
    for (int64_t output = 0; output < PANEL; ++output) {
      float expected = 0;
      for (int64_t k = 0; k < WORDS; ++k) {
        const int64_t of_x = row * WORDS + k, of_panel = k * PANEL + output;
        expected += first(of_x) * second(of_panel) + second(of_x) * first(of_panel);
      }
      if (sums[row * PANEL + output] != expected) return false;
    }
  }
  return true;
}
#endif
