//! A map from each byte of a file to the last write that covered the byte.

use std::collections::BTreeMap;

/// The last write of every byte of a file. Adjacent bytes with the same last write share an entry.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Maps the first offset of a byte range to its end and to the number of the last write that covered the range.
    runs: BTreeMap<u64, (u64, u64)>,
}

/// Adjacent bytes of a file with the same last write, or without any write (number 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The offset of the first byte of the range.
    pub offset: u64,
    /// The number of bytes in the range.
    pub len: u64,
    /// The number of the last write; 0 means that no write covered these bytes.
    pub number: u64,
}

impl Written {
    /// Records that the write with the number `number` covers a byte range, whose end must not exceed `u64::MAX`.
    pub fn write(&mut self, offset: u64, len: u64, number: u64) {
        if len == 0 {
            return;
        }
        let end = offset + len;
        self.split(offset);
        self.split(end);
        let covered: Vec<u64> = self.runs.range(offset..end).map(|(start, _)| *start).collect();
        for start in covered {
            self.runs.remove(&start);
        }
        self.runs.insert(offset, (end, number));
    }

    /// Splits the byte range that contains `at` into two ranges, so that one of them begins at `at`.
    fn split(&mut self, at: u64) {
        let Some((start, (end, number))) = self.runs.range(..at).next_back().map(|(start, run)| (*start, *run)) else {
            return;
        };
        if end > at {
            self.runs.insert(start, (at, number));
            self.runs.insert(at, (end, number));
        }
    }

    /// Returns the offset after the last written byte.
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, (end, _))| *end)
    }

    /// Splits a range of the file into byte ranges, such that one write was the last write of all bytes of a byte
    /// range. Returns the byte ranges in the order of their offsets, without gaps.
    pub fn runs(&self, offset: u64, len: u64) -> Vec<Run> {
        let end = offset + len;
        let first = self.runs.range(..offset).next_back().map_or(offset, |(start, _)| *start);
        let mut out = Vec::new();
        let mut at = offset;
        for (start, (stop, number)) in self.runs.range(first..end) {
            let (start, stop) = ((*start).max(at), (*stop).min(end));
            if stop <= start {
                continue;
            }
            if start > at {
                out.push(Run { offset: at, len: start - at, number: 0 });
            }
            out.push(Run { offset: start, len: stop - start, number: *number });
            at = stop;
        }
        if at < end {
            out.push(Run { offset: at, len: end - at, number: 0 });
        }
        out
    }

    /// Removes all writes from the map.
    pub fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_ranges_agree_with_a_flat_array(writes in prop::collection::vec((0u64..100, 0u64..40), 0..30), asked in (0u64..150, 0u64..60)) {
            let mut written = Written::default();
            let mut flat = [0u64; 300];
            for (number, (offset, len)) in writes.iter().enumerate() {
                written.write(*offset, *len, number as u64 + 1);
                flat[*offset as usize..(offset + len) as usize].fill(number as u64 + 1);
            }
            prop_assert_eq!(written.end() as usize, flat.iter().rposition(|n| *n > 0).map_or(0, |at| at + 1));
            let runs = written.runs(asked.0, asked.1);
            let found: Vec<u64> = runs.iter().flat_map(|run| vec![run.number; run.len as usize]).collect();
            prop_assert_eq!(&found[..], &flat[asked.0 as usize..(asked.0 + asked.1) as usize]);
            let mut at = asked.0;
            for run in runs {
                prop_assert_eq!(run.offset, at);
                prop_assert!(run.len > 0);
                at += run.len;
            }
        }
    }
}
