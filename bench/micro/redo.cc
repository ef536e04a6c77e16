// Encoding, applying and replaying changes of one page.
#include "redo/redo.h"

#include "micro.h"
#include "micro_page.h"

namespace strata::micro {
namespace {

void change_record(benchmark::State& state) {
  Rng rng(1);
  FullPage full(&rng);
  const TreePageView view(full.page());
  std::string after(view.value(5));
  std::string ops;
  for (auto _ : state) {
    ops.clear();
    for (int at = 0; at < 24; at += 8) store_u64(after.data() + at, rng.next());
    redo::encode_value_change(&ops, 5, view.value(5), after);
    must(redo::apply_ops(full.mutable_page(), ops));
  }
  state.SetLabel("limit: memcpy_256");
}
BENCHMARK(change_record)->Name("redo/change_24_bytes");

void replay(benchmark::State& state) {
  Rng rng(1);
  const FullPage full(&rng);
  PageBytes page;
  for (auto _ : state) {
    init_leaf(page.bytes);
    header_of(page.bytes)->llsn = 0;
    uint64_t llsn = 0;
    for (const std::string& section : full.sections()) {
      const redo::SectionView view{kPage, Llsn{llsn}, section};
      const auto applied = redo::apply_section(page.bytes, Llsn{llsn + 8}, view);
      STRATA_ASSERT(applied.ok() && *applied == redo::Applied::kApplied);
      llsn += 8;
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(full.sections().size()));
  state.SetLabel("limit: memcpy_256");
}
BENCHMARK(replay)->Name("redo/replay_insert");

void encode_image(benchmark::State& state) {
  Rng rng(1);
  const FullPage full(&rng);
  std::string ops;
  for (auto _ : state) {
    ops.clear();
    redo::encode_image(&ops, full.page());
  }
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(encode_image)->Name("redo/encode_image");

void apply_image(benchmark::State& state) {
  Rng rng(1);
  const FullPage full(&rng);
  std::string ops;
  redo::encode_image(&ops, full.page());
  PageBytes page;
  for (auto _ : state) must(redo::apply_ops(page.bytes, ops));
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(apply_image)->Name("redo/apply_image");

}  // namespace
}  // namespace strata::micro
