//! The contents of the writes in a trace: a function of the number of the file, the offset, and the number of the
//! write.

use crate::rng::mix;

/// Fills `out` with the bytes that the write with the number `number` stores at `offset` of a file. The number 0
/// stands for a hole: zeros.
pub fn fill(file: u32, number: u64, offset: u64, out: &mut [u8]) {
    if number == 0 {
        return out.fill(0);
    }
    let base = mix(mix(number) ^ u64::from(file));
    let (mut word, mut at) = (offset / 8, (offset % 8) as usize);
    let mut rest = out;
    while !rest.is_empty() {
        let bytes = mix(base ^ word).to_le_bytes();
        let (now, later) = rest.split_at_mut((8 - at).min(rest.len()));
        now.copy_from_slice(&bytes[at..at + now.len()]);
        (rest, at, word) = (later, 0, word + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_the_same_content_in_every_requested_range() {
        let mut all = [0; 100];
        fill(3, 7, 1000, &mut all);
        for (from, to) in [(0, 1), (1, 9), (5, 5), (8, 16), (13, 100), (99, 100)] {
            let mut part = vec![0; to - from];
            fill(3, 7, 1000 + from as u64, &mut part);
            assert_eq!(part, all[from..to]);
        }
    }

    #[test]
    fn content_differs_by_write_file_and_offset() {
        let of = |file, number, offset| {
            let mut out = [1; 16];
            fill(file, number, offset, &mut out);
            out
        };
        let here = of(0, 1, 0);
        assert!([of(1, 1, 0), of(0, 2, 0), of(0, 1, 8), of(0, 1, 1)].iter().all(|other| *other != here));
        assert_eq!(of(5, 0, 99), [0; 16]);
    }
}
