//! The stored kind of log files: a striped base, a data log of each writer, and an index that is divided into shards.
//!
//! All objects of a log file are on the iods of its striped base. The bytes of a data log alternate between the iods in
//! units of [`log_unit`]; the iod of the first unit depends on the log number. Shard `n` of the index has all runs of the
//! ranges of [`index_unit`] bytes whose number modulo the number of iods is `n`, and is on the iod with index `n`.

use super::VERSION;
use crate::distributions::{BadGeometry, Distribution, DistributionId, Piece};
use crate::kinds::native;
use types::limits::STRIPE_UNIT_MAX;
use types::{ByteRange, LOG_STREAMS};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The number of the stored kind in layout records.
pub const KIND: u32 = 0x8000_5746;

/// Returns the number of consecutive bytes of a data log on one iod, for a base with this stripe unit: 4 MiB with the
/// default stripe unit of 1 MiB. Longer than a stripe unit, so that the requests of a writer are large.
pub fn log_unit(stripe_unit: u64) -> u64 {
    stripe_unit.saturating_mul(4).min(STRIPE_UNIT_MAX)
}

/// Returns the number of consecutive bytes of a file whose runs are in the same shard of the index, for a base with this
/// stripe unit: 64 MiB with the default stripe unit of 1 MiB.
pub fn index_unit(stripe_unit: u64) -> u64 {
    stripe_unit.saturating_mul(64).min(STRIPE_UNIT_MAX)
}

/// The layout record that the namespace stores for a log file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The striped base, of one copy. The data logs and the index are on the same iods.
    pub base: native::Record,
}

impl Xdr for Record {
    fn encode(&self, out: &mut Writer) {
        out.u32(VERSION);
        self.base.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            VERSION => {}
            value => return Err(Malformed::BadValue { what: "version of the layout of a log file", value }),
        }
        let base = native::Record::decode(input)?;
        if base.mirrors != 1 {
            return Err(Malformed::Invalid("a log file with several copies"));
        }
        if base.stream >= LOG_STREAMS {
            return Err(Malformed::Invalid("a log file whose base has the stream of a data log"));
        }
        Ok(Record { base })
    }
}

/// Returns the distribution that divides a file into shards of its index, for a base with this stripe unit over `count`
/// iods: the index of an object is the index of the iod that has the shard.
///
/// # Errors
/// The stripe unit or `count` is out of bounds.
pub fn shards(stripe_unit: u64, count: usize) -> Result<Distribution, BadGeometry> {
    Distribution::new(DistributionId::SimpleStripe, index_unit(stripe_unit), count)
}

/// The places of the bytes of one data log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPlaces {
    log: u32,
    distribution: Distribution,
}

impl LogPlaces {
    /// Returns the places of data log `log` of a file whose base has this stripe unit over `count` iods.
    ///
    /// # Errors
    /// The stripe unit or `count` is out of bounds.
    pub fn new(log: u32, stripe_unit: u64, count: usize) -> Result<Self, BadGeometry> {
        let distribution = Distribution::new(DistributionId::SimpleStripe, log_unit(stripe_unit), count)?;
        Ok(LogPlaces { log, distribution })
    }

    /// Returns the pieces of a range of the log, in their order. In each piece, `index` is the index of the iod, `object`
    /// the range in the log's object on this iod, and `file` the range in the log.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> + '_ {
        let count = self.distribution.count();
        let first = self.log as usize % count;
        self.distribution.pieces(range).map(move |piece| Piece { index: (piece.index + first) % count, ..piece })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_units_of_a_log_alternate_between_the_iods() {
        const UNIT: u64 = 4 << 20;
        let places = LogPlaces::new(5, 1 << 20, 3).unwrap();
        let pieces: Vec<Piece> = places.pieces(ByteRange { offset: UNIT - 1, len: 3 * UNIT }).collect();
        let found: Vec<_> = pieces.iter().map(|piece| (piece.index, piece.object.offset, piece.object.len)).collect();
        assert_eq!(found, [(2, UNIT - 1, 1), (0, 0, UNIT), (1, 0, UNIT), (2, UNIT, UNIT - 1)]);
        assert_eq!(shards(1 << 20, 3).unwrap().place((256 << 20) + 7).index, 1);
        assert!(LogPlaces::new(1, 1 << 20, 0).is_err() && shards(0, 1).is_err());
        assert!(LogPlaces::new(1, STRIPE_UNIT_MAX, 2).is_ok() && shards(STRIPE_UNIT_MAX, 2).is_ok());
    }

    #[test]
    fn a_record_is_that_of_its_base_with_one_copy() {
        let base = native::Record {
            distribution: DistributionId::SimpleStripe,
            stripe_unit: 1 << 20,
            mirrors: 1,
            stream: 0,
            iods: vec![3, 1],
        };
        let record = Record { base: base.clone() };
        let bytes = record.to_bytes();
        assert_eq!(bytes[..4], [0, 0, 0, 1]);
        assert_eq!(bytes[4..], base.to_bytes());
        assert_eq!(Record::from_bytes(&bytes), Ok(record));
        let copies = Record { base: native::Record { mirrors: 2, ..base.clone() } };
        assert!(Record::from_bytes(&copies.to_bytes()).is_err());
        let in_log = Record { base: native::Record { stream: LOG_STREAMS, ..base } };
        assert!(Record::from_bytes(&in_log.to_bytes()).is_err());
    }
}
