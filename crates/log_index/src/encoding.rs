//! The encoding of runs, on the network and in the stores of the iods.
//!
//! Each run is encoded as its difference from the run before it, in variable-length integers. A first byte says which
//! fields follow.

use super::run::{LogNumber, Run, Source};
use integer_encoding::VarInt;
use types::ByteRange;
use xdr::Malformed;

/// Bit of the first byte: the bytes of the run are in a log, and not in the striped base.
const IN_LOG: u8 = 1;
/// Bit of the first byte: the run is in the same log as the last run that is in a log.
const SAME_LOG: u8 = 1 << 1;
/// Bit of the first byte: in the log, the run follows the last run that is in a log.
const NEXT_POSITION: u8 = 1 << 2;
/// Bit of the first byte: the pieces are as long as the pieces of the last run.
const SAME_LEN: u8 = 1 << 3;
/// Bit of the first byte: the run has several pieces.
const STRIDED: u8 = 1 << 4;
/// Bits of the first byte that no encoder sets.
const UNUSED: u8 = !(IN_LOG | SAME_LOG | NEXT_POSITION | SAME_LEN | STRIDED);

/// What the encoding of a run refers to: the end of the last run, the length of its pieces, and the log and the
/// position after the last run that is in a log.
#[derive(Default)]
struct Last {
    offset: u64,
    len: u64,
    log: u32,
    position: u64,
}

impl Last {
    fn follow(&mut self, run: &Run) {
        (self.offset, self.len) = (run.bounds().end(), run.first().len);
        if let Source::Log { log, position } = run.source() {
            (self.log, self.position) = (log.0, position + run.bytes());
        }
    }
}

/// Encodes runs, in their order.
pub fn encode(runs: impl IntoIterator<Item = Run>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut last = Last::default();
    for run in runs {
        encode_run(&mut out, &run, &last);
        last.follow(&run);
    }
    out
}

fn encode_run(out: &mut Vec<u8>, run: &Run, last: &Last) {
    let ByteRange { offset, len } = run.first();
    let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
    let (same_len, strided) = (len == last.len, run.count() > 1);
    let (in_log, same_log, next) = match run.source() {
        Source::Log { log, position } => (true, log.0 == last.log, position == last.position),
        Source::Base => (false, false, false),
    };
    out.push(
        bit(in_log, IN_LOG)
            | bit(same_log, SAME_LOG)
            | bit(next, NEXT_POSITION)
            | bit(same_len, SAME_LEN)
            | bit(strided, STRIDED),
    );
    put_difference(out, last.offset, offset);
    if !same_len {
        put(out, len);
    }
    if strided {
        put(out, run.count());
        put(out, run.stride() - len);
    }
    if let Source::Log { log, position } = run.source() {
        if !same_log {
            put(out, log.0.into());
        }
        if !next {
            put_difference(out, last.position, position);
        }
    }
}

pub(super) fn put(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; 10];
    let len = value.encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

/// Encodes `to` as its signed difference from `from`. The difference fits, because offsets are below 2^62.
fn put_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let mut bytes = [0; 10];
    let len = (to as i64).wrapping_sub(from as i64).encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

/// Decodes at most `max` runs, which must use all bytes.
///
/// # Errors
/// The bytes do not encode runs, or encode more than `max` runs.
pub fn decode(mut bytes: &[u8], max: usize) -> Result<Vec<Run>, Malformed> {
    let (mut runs, mut last) = (Vec::new(), Last::default());
    while !bytes.is_empty() {
        if runs.len() == max {
            return Err(Malformed::Invalid("runs of the index: too many"));
        }
        let run = decode_run(&mut bytes, &last)?;
        last.follow(&run);
        runs.push(run);
    }
    Ok(runs)
}

fn decode_run(bytes: &mut &[u8], last: &Last) -> Result<Run, Malformed> {
    let bits = bytes.split_off_first().copied().ok_or(BAD)?;
    let is = |bit: u8| bits & bit != 0;
    if bits & UNUSED != 0 || !is(IN_LOG) && (is(SAME_LOG) || is(NEXT_POSITION)) {
        return Err(BAD);
    }
    let offset = take_difference(bytes, last.offset)?;
    let len = if is(SAME_LEN) { last.len } else { take(bytes)? };
    let (count, stride) = match is(STRIDED) {
        true => (take(bytes)?, take::<u64>(bytes)?.checked_add(len).ok_or(BAD)?),
        false => (1, len),
    };
    let source = if is(IN_LOG) {
        let log = if is(SAME_LOG) { last.log } else { take::<u32>(bytes)? };
        let position = if is(NEXT_POSITION) { last.position } else { take_difference(bytes, last.position)? };
        Source::Log { log: LogNumber(log), position }
    } else {
        Source::Base
    };
    if is(STRIDED) && count < 2 {
        return Err(BAD);
    }
    Run::new(ByteRange { offset, len }, source, stride, count).map_err(|_| BAD)
}

const BAD: Malformed = Malformed::Invalid("a run of the index");

pub(super) fn take<T: VarInt>(bytes: &mut &[u8]) -> Result<T, Malformed> {
    let (value, used) = T::decode_var(bytes).ok_or(BAD)?;
    *bytes = &bytes[used..];
    Ok(value)
}

fn take_difference(bytes: &mut &[u8], from: u64) -> Result<u64, Malformed> {
    from.checked_add_signed(take(bytes)?).ok_or(BAD)
}
