//! Tests of the layout record and the bodies of native layouts: golden bytes, round trips, and invalid encodings.

use bytes::Bytes;
use layout::DistributionId;
use layout::kinds::native::{self, Body, Device, Local, Native, Record, Update, log};
use layout::kinds::{Kind, KindId, PREFERRED};
use proptest::prelude::*;
use types::{FileId, Generation, IodId, ObjectId};
use xdr::{Malformed, Xdr};

fn record() -> Record {
    let (distribution, iods) = (DistributionId::SimpleStripe, vec![2, 0, 513]);
    Record { distribution, stripe_unit: 65536, mirrors: 1, stream: 0, iods }
}

fn body() -> Body {
    Body {
        distribution: DistributionId::SimpleStripe,
        stripe_unit: 64,
        devices: vec![IodId([0xa1; 16]), IodId([0xb2; 16])],
        object: ObjectId::new(FileId(0x0102_0304_0506_0708), 0x21),
        generation: Generation(9),
        whole: 0x11_0000_0022,
        capability: Bytes::from_static(b"token"),
        authenticators: vec![[0xd4; 32], [0xe5; 32]],
        secs: 600,
        index_authenticators: Vec::new(),
    }
}

fn device() -> Device {
    Device {
        iod: IodId([0xc3; 16]),
        tcp: vec!["[::1]:7000".into()],
        local: Some(Local { boot_id: "boot".into(), path: Bytes::from_static(b"/run/iod\xff") }),
        ticket: Bytes::from_static(b"tick"),
    }
}

#[test]
fn record_golden() {
    let golden = [0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2, 1];
    assert_eq!(record().to_bytes(), &golden[..]);
    assert_eq!(Record::from_bytes(&Bytes::copy_from_slice(&golden)), Ok(record()));
}

#[test]
fn record_of_another_stream_golden() {
    for mirrors in [1, 2] {
        let golden =
            [0, 0, 0, 3, 0, 0, 0, mirrors, 0, 0, 2, 4, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0];
        let record = Record { mirrors: mirrors.into(), stream: 0x204, iods: vec![2, 0], ..record() };
        assert_eq!(record.to_bytes(), &golden[..]);
        assert_eq!(Record::from_bytes(&Bytes::copy_from_slice(&golden)), Ok(record.clone()));
        assert_eq!(record.object(FileId(9)), ObjectId::new(FileId(9), 0x204));
        let with = |at: usize, value: u8| {
            let mut bytes = golden;
            bytes[at] = value;
            Record::from_bytes(&Bytes::copy_from_slice(&bytes))
        };
        assert_eq!(with(7, 0), Err(Malformed::BadValue { what: "number of copies", value: 0 }));
        assert_eq!(with(7, 3), Err(Malformed::BadValue { what: "number of copies", value: 3 }));
    }
    let stream_0 = [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
    let refused = Err(Malformed::BadValue { what: "stream of a native layout", value: 0 });
    assert_eq!(Record::from_bytes(&Bytes::copy_from_slice(&stream_0)), refused);
}

#[test]
fn update_golden() {
    for bits in 0..32 {
        let golden = [0, 0, 0, 1, 0, 0, 0, bits];
        let is = |bit| bits & bit != 0;
        let update = Update { durable: is(1), measure: is(2), fence: is(4), holes: is(8), whole: is(16) };
        assert_eq!(update.to_bytes(), &golden[..]);
        assert_eq!(Update::from_bytes(&golden.to_vec().into()), Ok(update));
    }
    assert!(Update::from_bytes(&vec![0, 0, 0, 1, 0, 0, 0, 32].into()).is_err());
    assert!(Update::from_bytes(&vec![0, 0, 0, 2, 0, 0, 0, 1].into()).is_err());
}

#[test]
fn body_golden() {
    let mut golden = vec![0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 64, 0, 0, 0, 2];
    golden.extend([0xa1; 16]);
    golden.extend([0xb2; 16]);
    golden.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0x21, 0, 0, 0, 9]);
    golden.extend([0, 0, 0, 0x11, 0, 0, 0, 0x22, 0, 0, 0, 5]);
    golden.extend(b"token\0\0\0\0\0\0\x02");
    golden.extend([0xd4; 32]);
    golden.extend([0xe5; 32]);
    golden.extend([0, 0, 2, 88]);
    assert_eq!(body().to_bytes(), golden);
    let fewer = Body { authenticators: vec![[0xd4; 32]], ..body() };
    Body::from_bytes(&fewer.to_bytes()).unwrap_err();
    assert_eq!(Body::from_bytes(&golden.into()), Ok(body()));
}

#[test]
fn the_body_of_a_log_file_ends_with_the_authenticators_for_the_index() {
    let of_log_file = Body { index_authenticators: vec![[0xf6; 32], [0x07; 32]], ..body() };
    let mut golden = body().to_bytes().to_vec();
    golden[3] = 5;
    golden.extend([0, 0, 0, 2]);
    golden.extend([0xf6; 32]);
    golden.extend([0x07; 32]);
    assert_eq!(of_log_file.to_bytes(), golden);
    assert_eq!(Body::from_bytes(&golden.clone().into()), Ok(of_log_file.clone()));
    golden[3] = 4;
    assert_eq!(Body::from_bytes(&golden.into()), Err(Malformed::Trailing));
    for index_authenticators in [vec![[0xf6; 32]], vec![[0xf6; 32]; 3]] {
        let bytes = Body { index_authenticators, ..of_log_file.clone() }.to_bytes();
        assert!(matches!(Body::from_bytes(&bytes), Err(Malformed::Invalid(_))));
    }
    let mut none = body().to_bytes().to_vec();
    none[3] = 5;
    none.extend([0, 0, 0, 0]);
    assert!(matches!(Body::from_bytes(&none.into()), Err(Malformed::Invalid(_))));
}

#[test]
fn log_records_hold_the_record_of_their_base() {
    let log_record = log::Record { base: Record { stream: 7, ..record() } };
    let bytes = log_record.to_bytes();
    assert_eq!(bytes[..4], [0, 0, 0, 1]);
    assert_eq!(bytes[4..], log_record.base.to_bytes());
    assert_eq!(log::Record::from_bytes(&bytes), Ok(log_record));
    for at in 0..bytes.len() {
        assert!(log::Record::from_bytes(&bytes.slice(..at)).is_err(), "{at} bytes");
    }
    let mut newer = bytes.to_vec();
    newer[3] = 2;
    let refused = Err(Malformed::BadValue { what: "version of the layout of a log file", value: 2 });
    assert_eq!(log::Record::from_bytes(&newer.into()), refused);
}

#[test]
fn device_golden() {
    let mut golden = vec![0, 0, 0, 1];
    golden.extend([0xc3; 16]);
    golden.extend([0, 0, 0, 1, 0, 0, 0, 10]);
    golden.extend(b"[::1]:7000\0\0");
    golden.extend([0, 0, 0, 1, 0, 0, 0, 4]);
    golden.extend(b"boot");
    golden.extend([0, 0, 0, 9]);
    golden.extend(b"/run/iod\xff\0\0\0");
    golden.extend([0, 0, 0, 4]);
    golden.extend(b"tick");
    assert_eq!(device().to_bytes(), golden);
    assert_eq!(Device::from_bytes(&golden.into()), Ok(device()));
}

#[test]
fn a_ticket_is_never_shown() {
    let shown = format!("{:?}", device());
    assert!(shown.contains("[secret]") && !shown.contains("tick\""), "{shown}");
}

#[test]
fn kind_numbers() {
    assert_eq!(KindId::from_number(native::KIND), Some(Native::ID));
    assert_eq!(KindId::from_number(1), None);
    let numbers: std::collections::HashSet<u32> = PREFERRED.iter().map(|kind| kind.number()).collect();
    assert_eq!(numbers.len(), PREFERRED.len(), "each number has one meaning");
}

#[test]
fn bad_records_are_refused() {
    let with = |at: usize, value: u8| {
        let mut bytes = record().to_bytes().to_vec();
        bytes[at] = value;
        Record::from_bytes(&bytes.into())
    };
    assert_eq!(with(3, 4), Err(Malformed::BadValue { what: "version of a native layout", value: 4 }));
    assert_eq!(with(3, 2), Err(Malformed::BadValue { what: "number of copies", value: 1 }));
    assert_eq!(with(7, 9), Err(Malformed::BadValue { what: "distribution of a layout", value: 9 }));
    assert!(matches!(with(11, 1), Err(Malformed::Invalid(_))), "crooked stripe unit");
    assert!(matches!(with(8, 255), Err(Malformed::Invalid(_))), "huge stripe unit");
    assert_eq!(with(15, 0), Err(Malformed::Invalid("a layout over no iod")));
    assert_eq!(with(14, 9), Err(Malformed::TooLong { len: 0x903, max: 256 }));
    assert_eq!(with(24, 1), Err(Malformed::BadValue { what: "number of an iod", value: 0x0100_0201 }));
    let mut long = record().to_bytes().to_vec();
    long.push(0);
    assert_eq!(Record::from_bytes(&long.into()), Err(Malformed::Trailing));
}

#[test]
fn rotation_starts_each_file_on_another_iod() {
    let iods = [10, 11, 12, 13];
    let made =
        |count, first| Record::rotated(DistributionId::SimpleStripe, 64, &iods, (count, 1), first).map(|r| r.iods);
    assert_eq!(made(0, 0), Ok(vec![10, 11, 12, 13]));
    assert_eq!(made(0, 6), Ok(vec![12, 13, 10, 11]));
    assert_eq!(made(2, 3), Ok(vec![13, 10]));
    assert_eq!(made(9, 1), Ok(vec![11, 12, 13, 10]), "more than there are");
    let copies = |count, mirrors| Record::rotated(DistributionId::SimpleStripe, 64, &iods, (count, mirrors), 1);
    let two = copies(0, 2).unwrap();
    assert_eq!((two.iods.len(), two.distribution().unwrap().count()), (iods.len() / 2 * 2, iods.len() / 2));
    assert_eq!(two.iods.iter().collect::<std::collections::HashSet<_>>().len(), two.iods.len());
    assert_eq!(copies(1, 2).unwrap().iods, iods[1..3]);
    assert!(Record::rotated(DistributionId::SimpleStripe, 64, &iods[..1], (1, 2), 0).is_err());
    assert_eq!(Record::from_bytes(&two.to_bytes()), Ok(two.clone()));
    assert!(Record::from_bytes(&Record { iods: iods[..3].to_vec(), ..two }.to_bytes()).is_err());
    assert!(Record::rotated(DistributionId::SimpleStripe, 64, &[], (0, 1), 5).is_err());
}

proptest! {
    #[test]
    fn decoders_accept_or_refuse_any_bytes_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..120, flip in any::<u8>(),
    ) {
        let bytes = Bytes::from(bytes);
        let _ = (Record::from_bytes(&bytes), Body::from_bytes(&bytes), Device::from_bytes(&bytes));
        let of_log_file = Body { index_authenticators: vec![[0xf6; 32]; 2], ..body() };
        for good in [record().to_bytes(), body().to_bytes(), of_log_file.to_bytes(), device().to_bytes()] {
            let mut bad = good.to_vec();
            let at = at % bad.len();
            bad[at] ^= flip;
            let bad = Bytes::from(bad);
            if let Ok(back) = Body::from_bytes(&bad) {
                prop_assert_eq!(back.to_bytes().len(), bad.len());
                prop_assert!(back.distribution().is_ok());
            }
            if let Ok(back) = Record::from_bytes(&bad) {
                prop_assert_eq!(back.to_bytes(), bad.clone());
                prop_assert!(back.distribution().is_ok());
            }
            let _ = Device::from_bytes(&bad);
        }
    }

    #[test]
    fn records_round_trip(
        unit in 1u64..=(1 << 24), stream in any::<u32>(), iods in prop::collection::vec(any::<u16>(), 1..=256),
    ) {
        let (distribution, stripe_unit) = (DistributionId::SimpleStripe, unit * 64);
        let record = Record { distribution, stripe_unit, mirrors: 1, stream, iods };
        prop_assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }
}
