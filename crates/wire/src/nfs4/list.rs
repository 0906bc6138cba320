//! Codec for the linked lists of XDR (RFC 4506 section 4.19), as vectors. On the wire, `true` precedes each item, and
//! `false` ends the list.

use xdr::{Malformed, Reader, Writer, Xdr};

/// Decodes a linked list of at most `max` items.
pub(super) fn read_list<T>(
    input: &mut Reader,
    max: usize,
    mut item: impl FnMut(&mut Reader) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut items = Vec::new();
    while input.bool()? {
        if items.len() == max {
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            return Err(Malformed::TooLong { len: max.saturating_add(1), max });
        }
        items.push(item(input)?);
    }
    Ok(items)
}

/// Encodes a linked list.
pub(super) fn write_list<T: Xdr>(out: &mut Writer, items: &[T]) {
    for item in items {
        out.bool(true);
        item.encode(out);
    }
    out.bool(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn list_lengths_are_bounded() {
        let mut out = Writer::new();
        for value in [7, 8, 9] {
            out.bool(true);
            out.u32(value);
        }
        out.bool(false);
        let bytes: Bytes = out.finish().to_bytes();
        assert_eq!(read_list(&mut Reader::new(bytes.clone()), 3, Reader::u32), Ok(vec![7, 8, 9]));
        let error = Err(Malformed::TooLong { len: 3, max: 2 });
        assert_eq!(read_list(&mut Reader::new(bytes), 2, Reader::u32), error);
    }
}
