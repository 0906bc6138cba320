//! Tests of distributions and list I/O plans against a reference that maps one byte at a time.

use layout::list_io::{RequestLimits, plan};
use layout::{BadGeometry, Distribution, DistributionId};
use proptest::prelude::*;
use types::ByteRange;

/// Returns the object index and object offset of each of the file bytes `0..len`, and the object sizes. Maps the bytes
/// one at a time.
fn reference(unit: u64, count: usize, len: u64) -> (Vec<(usize, u64)>, Vec<u64>) {
    let mut sizes = vec![0; count];
    let mut places = Vec::new();
    let mut index = 0;
    for byte in 0..len {
        if byte > 0 && byte % unit == 0 {
            index = (index + 1) % count;
        }
        places.push((index, sizes[index]));
        sizes[index] += 1;
    }
    (places, sizes)
}

fn stripe(unit: u64, count: usize) -> Distribution {
    Distribution::new(DistributionId::SimpleStripe, unit, count).unwrap()
}

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![Just(64u64), Just(128), Just(192), Just(4096), (1u64..40).prop_map(|n| n * 64)]
}

fn range(max: u64) -> impl Strategy<Value = ByteRange> {
    (0..max, 0..max).prop_map(|(a, b)| ByteRange { offset: a.min(b), len: a.max(b) - a.min(b) })
}

proptest! {
    #[test]
    fn places_and_sizes_match_the_reference(unit in units(), count in 1usize..=9, len in 0u64..20_000) {
        let d = stripe(unit, count);
        let (places, sizes) = reference(unit, count, len);
        for (byte, (index, offset)) in places.iter().enumerate() {
            let place = d.place(byte as u64);
            prop_assert_eq!((place.index, place.offset), (*index, *offset));
            prop_assert_eq!(d.file_offset(*index, *offset), Some(byte as u64));
        }
        for (index, size) in sizes.iter().enumerate() {
            prop_assert_eq!(d.object_size(len, index), *size);
        }
        prop_assert_eq!(d.file_size(&sizes), len);
    }

    #[test]
    fn pieces_cover_the_range_in_order(unit in units(), count in 1usize..=9, range in range(20_000)) {
        let d = stripe(unit, count);
        let (places, _) = reference(unit, count, range.end());
        let mut next = range.offset;
        for piece in d.pieces(range) {
            prop_assert_eq!(piece.file.offset, next);
            prop_assert_eq!(piece.file.len, piece.object.len);
            prop_assert!(piece.file.len > 0);
            for i in 0..piece.file.len {
                prop_assert_eq!(places[(piece.file.offset + i) as usize], (piece.index, piece.object.offset + i));
            }
            next = piece.file.end();
        }
        prop_assert_eq!(next, range.end());
    }

    #[test]
    fn object_ranges_at_large_offsets_map_back_to_the_file(
        unit in 1u64..=(1 << 24), count in 1usize..=256,
        offset in 0u64..(1 << 61), len in 1u64..100_000,
    ) {
        let d = stripe(unit * 64, count);
        let place = d.place(offset);
        let range = ByteRange { offset: place.offset, len };
        let mut next = range.offset;
        for file in d.file_ranges(place.index, range).take(50) {
            let there = d.place(file.offset);
            prop_assert_eq!((there.index, there.offset), (place.index, next));
            prop_assert!(file.len > 0 && there.run >= file.len);
            next += file.len;
        }
        prop_assert!(next > range.offset && next <= range.end());
    }

    #[test]
    fn large_file_offsets_map_to_objects_and_back(
        unit in 1u64..=(1 << 24), count in 1usize..=256, offset in 0u64..(1 << 62),
    ) {
        let d = stripe(unit * 64, count);
        let place = d.place(offset);
        prop_assert_eq!(d.file_offset(place.index, place.offset), Some(offset));
        prop_assert_eq!(d.object_size(offset + 1, place.index), place.offset + 1);
        let last = d.place(offset + place.run - 1);
        prop_assert_eq!((last.index, last.offset), (place.index, place.offset + place.run - 1));
    }

    #[test]
    fn the_file_size_is_the_smallest_that_covers_all_objects(
        unit in units(), count in 1usize..=8, sizes in prop::collection::vec(0u64..9000, 8),
    ) {
        let d = stripe(unit, count);
        let sizes = &sizes[..count];
        let size = d.file_size(sizes);
        for (index, object) in sizes.iter().enumerate() {
            prop_assert!(d.object_size(size, index) >= *object);
        }
        if size > 0 {
            let last = d.place(size - 1);
            prop_assert_eq!(sizes[last.index], last.offset + 1);
        }
    }

    #[test]
    fn plans_move_every_byte_once(
        unit in units(), count in 1usize..=8,
        cuts in prop::collection::btree_set(0u64..30_000, 0..24),
        extents in 1usize..6, bytes in 1u64..5000,
    ) {
        let d = stripe(unit, count);
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let ranges: Vec<ByteRange> =
            cuts.chunks_exact(2).map(|c| ByteRange { offset: c[0], len: c[1] - c[0] }).collect();
        let limits = RequestLimits { extents, bytes };
        let mut moved = std::collections::BTreeSet::new();
        for request in plan(&d, &ranges, limits) {
            prop_assert!(request.extents.len() <= extents && request.bytes <= bytes && request.bytes > 0);
            let each = |ranges: &[ByteRange]| ranges.iter().flat_map(|r| r.offset..r.end()).collect::<Vec<_>>();
            let (object, file) = (each(&request.extents), each(&request.parts));
            prop_assert_eq!(object.len() as u64, request.bytes);
            prop_assert_eq!(file.len(), object.len());
            for (o, f) in object.iter().zip(&file) {
                let place = d.place(*f);
                prop_assert_eq!((place.index, place.offset), (request.index, *o));
                prop_assert!(moved.insert(*f), "moved twice");
            }
        }
        let wanted: std::collections::BTreeSet<u64> = ranges.iter().flat_map(|r| r.offset..r.end()).collect();
        prop_assert_eq!(moved, wanted);
    }
}

#[test]
fn a_contiguous_range_is_one_extent_per_object() {
    let d = stripe(64 << 10, 4);
    let requests = plan(&d, &[ByteRange { offset: 0, len: 4 << 20 }], RequestLimits::default());
    assert_eq!(requests.len(), 4);
    for (index, request) in requests.iter().enumerate() {
        assert_eq!((request.index, request.extents.len(), request.parts.len()), (index, 1, 16));
        assert_eq!(request.bytes, 1 << 20);
    }
}

#[test]
fn one_object_is_one_piece() {
    let d = stripe(64, 1);
    assert_eq!(d.pieces(ByteRange { offset: 5, len: 1 << 40 }).count(), 1);
    assert_eq!(d.pieces(ByteRange::ALL).count(), 1);
}

#[test]
fn invalid_stripe_units_and_counts_are_refused() {
    for unit in [0, 1, 63, 65, (1 << 30) + 64, u64::MAX] {
        let made = Distribution::new(DistributionId::SimpleStripe, unit, 1);
        assert_eq!(made, Err(BadGeometry::StripeUnit(unit)));
    }
    for count in [0, 257] {
        let made = Distribution::new(DistributionId::SimpleStripe, 64, count);
        assert_eq!(made, Err(BadGeometry::Count(count)));
    }
    let d = stripe(1 << 30, 256);
    assert_eq!(d.file_offset(255, u64::MAX), None);
    assert_eq!(d.file_size(&[u64::MAX; 256]), u64::MAX);
}

/// Compares the file ranges of every object range of small files with the reference, byte by byte.
#[test]
fn file_ranges_of_objects_match_the_reference() {
    for (unit, count) in [(64, 1), (64, 2), (64, 3), (128, 2), (192, 5)] {
        let d = stripe(unit, count);
        let (places, sizes) = reference(unit, count, unit * count as u64 * 3 + unit / 2);
        for (index, size) in sizes.iter().enumerate() {
            let bytes: Vec<u64> = (0..).zip(&places).filter(|(_, (i, _))| *i == index).map(|(byte, _)| byte).collect();
            for start in 0..*size {
                for len in [0, 1, 2, unit - 1, unit, unit + 1, 2 * unit, size - start] {
                    let len = len.min(size - start);
                    let found: Vec<ByteRange> = d.file_ranges(index, ByteRange { offset: start, len }).collect();
                    let flat: Vec<u64> = found.iter().flat_map(|r| r.offset..r.end()).collect();
                    assert_eq!(
                        flat,
                        bytes[start as usize..(start + len) as usize],
                        "{unit} {count} {index} {start} {len}"
                    );
                    assert!(found.windows(2).all(|pair| pair[0].end() < pair[1].offset), "neighbours are joined");
                }
            }
        }
    }
}
