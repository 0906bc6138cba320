//! Mutations of a valid message, determined by a seed. Ordinary tests use these mutations in place of a fuzzer.
//!
//! A test includes this file and a fuzz target with `#[path]`, and calls the target's `run` on many mutations.

/// Returns `frame` with one to four mutations.
pub fn mutate(frame: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    // SplitMix64, so that a seed gives the same mutations on every machine.
    let mut next = move |end: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    };
    let mut out = frame.to_vec();
    for _ in 0..=next(4) {
        if out.is_empty() {
            return out;
        }
        let at = next(out.len());
        let word = at & !3;
        match next(7) {
            0 => out[at] ^= 1 << next(8),
            1 => out[at] = [0, 1, 0x7f, 0x80, 0xff][next(5)],
            2 => out.truncate(at),
            3 => out.extend((0..next(16)).map(|_| 0)),
            4 => out.splice(word..word, [0, 0, 0, 1]).for_each(drop),
            5 => out.drain(word..out.len().min(word + 4)).for_each(drop),
            _ if out.len() >= word + 4 => {
                let value = [0, 1, 2, 0x100, 0x7fff_ffff, 0x8000_0000, u32::MAX][next(7)];
                out[word..word + 4].copy_from_slice(&value.to_be_bytes());
            }
            _ => {}
        }
    }
    out
}
