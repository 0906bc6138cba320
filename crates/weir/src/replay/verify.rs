//! Verification of a replay: compares the bytes that clients read with the bytes that they wrote.

use super::Models;
use super::client::name;
use super::store::{Buffer, Connection};
use crate::failure::Failure;
use std::collections::{BTreeSet, HashMap};
use trace::written::Written;
use trace::{Op, content};

/// Length of one read of the verification, in bytes.
const PIECE: u64 = 1 << 20;

/// Compares the bytes `found` that a read operation returned with the model of the file. No other client may use the
/// file. `filled` is the length to which the replay filled the file before its first operation.
pub(super) fn read(op: &Op, model: Option<&Written>, filled: u64, found: &[u8]) -> Result<(), Failure> {
    // Round `filled` up to a multiple of 1 MiB, because the replay fills files with writes of 1 MiB. So a file may be
    // longer than `filled`.
    let end = model.map_or(0, Written::end).max(filled.next_multiple_of(PIECE));
    let len = op.end().min(end).saturating_sub(op.offset);
    if found.len() as u64 != len {
        return Err(Failure::new(format!(
            "the read returned {} bytes at offset {} instead of {len}",
            found.len(),
            op.offset
        )));
    }
    let nothing = Written::default();
    compare(op.file, &[model.unwrap_or(&nothing)], op.offset, found)
}

/// Reads all files back through a separate client and compares them with the models. Returns the number of bytes read.
pub(super) fn all(connection: &Connection, models: &Models, filled: &HashMap<u32, u64>) -> Result<u64, Failure> {
    let (mut bytes, mut buffer) = (0, Buffer::default());
    for ((copy, file), models) in models {
        let models: Vec<&Written> = models.iter().collect();
        let end = models.iter().map(|model| model.end()).max().unwrap_or(0);
        let opened = connection.open(&name(*copy, *file))?;
        let about = |failure: Failure| failure.about(format_args!("reading back file {file} of copy {copy}"));
        let long = end.max(filled.get(file).copied().unwrap_or(0).next_multiple_of(PIECE));
        for at in (0..long.div_ceil(PIECE)).map(|piece| piece * PIECE) {
            let len = connection.read(&opened, (at, PIECE as usize), &mut buffer, true).map_err(about)?;
            if len as u64 != PIECE.min(long - at) {
                return Err(about(Failure::new(format!("the file ends at {} instead of {long}", at + len as u64))));
            }
            compare(*file, &models, at, buffer.space(len)).map_err(about)?;
            bytes += len as u64;
        }
        connection.close(opened)?;
    }
    Ok(bytes)
}

/// Compares the bytes `found` at `offset` with the models of all clients that wrote the file. If several clients wrote
/// a byte, accepts each client's last write of the byte, because the order of writes by several clients is unknown.
fn compare(file: u32, models: &[&Written], offset: u64, found: &[u8]) -> Result<(), Failure> {
    let len = found.len() as u64;
    let runs: Vec<_> = models.iter().map(|model| model.runs(offset, len)).collect();
    let mut borders: BTreeSet<u64> = runs.iter().flatten().map(|run| run.offset).collect();
    borders.insert(offset + len);
    let borders: Vec<u64> = borders.into_iter().collect();
    let mut expected = Vec::new();
    for ends in borders.windows(2) {
        let (start, end) = (ends[0], ends[1]);
        let part = &found[(start - offset) as usize..(end - offset) as usize];
        let number = |runs: &Vec<trace::written::Run>| {
            let at = runs.partition_point(|run| run.offset <= start);
            runs.get(at.wrapping_sub(1)).map_or(0, |run| run.number)
        };
        let mut numbers: Vec<u64> = runs.iter().map(number).filter(|number| *number > 0).collect();
        if numbers.is_empty() {
            numbers.push(0);
        }
        expected.resize(part.len(), 0);
        let fits = |number: &u64| {
            content::fill(file, *number, start, &mut expected);
            expected == part
        };
        if !numbers.iter().any(fits) {
            let expected = if numbers == [0] { "zeros, which no client overwrote" } else { "the last written bytes" };
            return Err(Failure::new(format!("the bytes from {start} to {end} are not {expected}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(writes: &[(u64, u64, u64)]) -> Written {
        let mut model = Written::default();
        writes.iter().for_each(|(offset, len, number)| model.write(*offset, *len, *number));
        model
    }

    fn bytes(parts: &[(u64, u64, usize)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, offset, len) in parts {
            let at = out.len();
            out.resize(at + len, 0);
            content::fill(9, *number, *offset, &mut out[at..]);
        }
        out
    }

    #[test]
    fn reads_must_return_the_last_write_and_zeros_in_holes() {
        let model = written(&[(0, 100, 1), (50, 10, 2), (200, 10, 3)]);
        let good = bytes(&[(1, 0, 50), (2, 50, 10), (1, 60, 40), (0, 100, 100), (3, 200, 10)]);
        let op = Op::read(9, 0, 300);
        assert_eq!(read(&op, Some(&model), 0, &good), Ok(()));
        assert!(read(&op, Some(&model), 0, &good[..209]).is_err(), "short");
        for at in [0, 55, 60, 150, 209] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(read(&op, Some(&model), 0, &bad).is_err(), "{at}");
        }
        assert_eq!(read(&op, None, 0, &[]), Ok(()));
        assert_eq!(read(&op, None, 300, &[0; 300]), Ok(()));
    }

    #[test]
    fn the_last_write_of_either_of_two_clients_is_valid() {
        let (a, b) = (written(&[(0, 20, 1)]), written(&[(10, 20, 2)]));
        for middle in [1, 2] {
            let found = bytes(&[(1, 0, 10), (middle, 10, 10), (2, 20, 10)]);
            assert_eq!(compare(9, &[&a, &b], 0, &found), Ok(()));
        }
        let older = bytes(&[(1, 0, 10), (0, 10, 10), (2, 20, 10)]);
        assert!(compare(9, &[&a, &b], 0, &older).is_err());
    }
}
