// For recovery, which must not look for pages of spaces whose files are gone.
#pragma once

#include <functional>

#include "redo/redo.h"

namespace strata::redo {

// As for_each_dropped_space(), and each space whose entry the section removes from the list of
// pending deletes: its file had gone before. The copy of that list that redo begins with may be
// younger than the log where redo begins, so that it tells of the space no more.
void for_each_gone_space(const SectionView& section, const std::function<void(SpaceId)>& visit);

}  // namespace strata::redo
