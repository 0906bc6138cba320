//! The `STORE` file: a record of the metadata store that uses the objects of an iod. By this record, the iod refuses
//! every other metadata store, and outdated copies of the recorded metadata store.

use std::io;
use std::sync::atomic::Ordering;

use types::{Status, StoreId};
use wire::native::{Claim, ClaimReply, Claiming, Failure, crc32c};

use super::format::{StoreError, be, error};
use super::{Store, failure};
use crate::disks::{Disk, read_full, write_all};
use crate::lock::lock;

const MAGIC: [u8; 8] = *b"WEIRSTO\0";
const VERSION: u32 = 1;
const LEN: usize = 52;
const CHECKED: usize = 48;

pub(crate) const STORE: &str = "STORE";
const STORE_NEW: &str = "STORE.new";

/// The claim of a metadata store that the iod has recorded, if any.
#[derive(Default)]
pub(super) struct Claimed {
    remembered: Option<Claim>,
    /// The highest object number in a store without a claim. The iod determines this number once. The clients of an mgr
    /// of an older Weir version, which sends no claims, may later create objects with higher numbers. This is harmless:
    /// after its upgrade, this mgr claims the iod with the same metadata store, which has allocated these numbers.
    highest: Option<u64>,
}

impl Claimed {
    /// Returns whether the iod has recorded no claim.
    pub(super) fn is_empty(&self) -> bool {
        self.remembered.is_none()
    }

    /// Reads the `STORE` file of the store on this disk.
    pub(super) fn read(disk: &dyn Disk) -> Result<Self, StoreError> {
        let fail = |doing| move |e| error(disk.path(), doing, e);
        let file = match disk.open(STORE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Claimed::default()),
            file => file.map_err(fail("open the STORE file"))?,
        };
        let mut bytes = [0; LEN + 1];
        let len = read_full(&*file, &mut bytes, 0).map_err(fail("read the STORE file"))?;
        match decode(&bytes[..len]) {
            Ok(claim) => Ok(Claimed { remembered: Some(claim), highest: None }),
            Err(reason) => Err(StoreError::DamagedClaim { dir: disk.path().to_owned(), reason }),
        }
    }
}

fn encode(claim: &Claim) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_be_bytes());
    out[12..28].copy_from_slice(&claim.store.0);
    out[28..32].copy_from_slice(&claim.epoch.to_be_bytes());
    out[32..40].copy_from_slice(&claim.mark.to_be_bytes());
    out[40..48].copy_from_slice(&claim.numbers.to_be_bytes());
    let crc = crc32c(&out[..CHECKED]);
    out[CHECKED..].copy_from_slice(&crc.to_be_bytes());
    out
}

fn decode(bytes: &[u8]) -> Result<Claim, &'static str> {
    if bytes.len() != LEN {
        return Err("its length is wrong");
    }
    if bytes[..8] != MAGIC {
        return Err("wrong magic number");
    }
    if be(&bytes[8..12]) != u64::from(VERSION) {
        return Err("it has a format version that this build does not know");
    }
    if be(&bytes[CHECKED..]) != u64::from(crc32c(&bytes[..CHECKED])) {
        return Err("its checksum does not match");
    }
    let mut store = [0; 16];
    store.copy_from_slice(&bytes[12..28]);
    let epoch = be(&bytes[28..32]) as u32;
    Ok(Claim { store: StoreId(store), epoch, mark: be(&bytes[32..40]), numbers: be(&bytes[40..48]) })
}

/// Writes the `STORE` file by rename, so that a crash leaves either the old or the new file, never a mixture.
fn write(disk: &dyn Disk, claim: &Claim) -> io::Result<()> {
    match disk.remove(STORE_NEW) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        // An earlier CLAIM failed and left a `STORE.new` file. Make the removal of this file durable before this CLAIM
        // uses the name. Otherwise, after a power cut, the later rename could give the name `STORE` to the old file.
        removed => removed.and_then(|()| disk.sync_folder(""))?,
    }
    let file = disk.create_new(STORE_NEW)?;
    write_all(&*file, &encode(claim), &[], 0)?;
    file.sync()?;
    disk.rename(STORE_NEW, STORE)?;
    disk.sync_folder("")
}

/// Returns whether the iod may accept a claim. If the iod has recorded a claim (`remembered`), the new claim must be of
/// the same metadata store and must name the mark of the recorded claim. Otherwise the metadata store must already have
/// allocated all object numbers up to `highest`, the highest object number on the iod.
fn may_take(claiming: &Claiming, remembered: Option<&Claim>, highest: Option<u64>) -> bool {
    match remembered {
        Some(old) => old.store == claiming.claim.store && old.mark == claiming.expected,
        None => claiming.expected == 0 && highest.is_some_and(|highest| highest < claiming.next),
    }
}

impl Store {
    /// Executes CLAIM: records the claim `claiming` if [`may_take`] allows it. Returns the claim that the iod has
    /// recorded then. With `want_highest`, also returns the highest object number.
    pub(crate) fn claim(&self, claiming: Option<&Claiming>, want_highest: bool) -> Result<ClaimReply, Failure> {
        // Hold the lock of the recorded claim for the whole call, so that a concurrent CLAIM sees the claim that this
        // CLAIM records.
        let mut claimed = lock(&self.claimed);
        if claimed.remembered.is_none() && claimed.highest.is_none() {
            claimed.highest = Some(self.highest()?);
        }
        let mut taken = false;
        if let Some(claiming) = claiming {
            if claiming.claim.mark == 0 {
                return Err(Failure { status: Status::Inval, detail: Some("a claim without a mark".into()) });
            }
            taken = may_take(claiming, claimed.remembered.as_ref(), claimed.highest);
            if taken && claimed.remembered != Some(claiming.claim) {
                write(self.disk(), &claiming.claim).map_err(|e| failure(&e, "write the STORE file"))?;
                claimed.remembered = Some(claiming.claim);
                claimed.highest = None;
            }
        }
        if taken {
            self.confirmed.store(true, Ordering::Release);
        }
        let highest = match want_highest {
            true => Some(self.highest()?),
            false => claimed.highest,
        };
        Ok(ClaimReply { taken, remembered: claimed.remembered, highest })
    }

    /// Checks that the iod may serve clients: either no metadata store has ever claimed the iod, or a metadata store
    /// has claimed the iod since the iod started. The mgr does not claim an iod that runs on an outdated copy of its
    /// disk, so such an iod serves no client.
    pub(crate) fn check_confirmed(&self) -> Result<(), Failure> {
        match self.confirmed.load(Ordering::Acquire) {
            true => Ok(()),
            false => {
                let why = "the mgr has not claimed this iod since its start".to_owned();
                Err(Failure { status: Status::Delay, detail: Some(why) })
            }
        }
    }

    /// Returns the highest object number in the store; 0 if the store has no object.
    fn highest(&self) -> Result<u64, Failure> {
        let mut highest = 0;
        self.walk(None, |object| {
            highest = highest.max(object.file.0);
            Ok(true)
        })?;
        Ok(highest)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::{Fsid, Generation};
    use wire::native::WriteExtent;

    use super::*;
    use crate::disks::{Memory, Operation};

    fn claim(store: u8, mark: u64) -> Claim {
        Claim { store: StoreId([store; 16]), epoch: 3, mark, numbers: 5000 }
    }

    #[test]
    fn a_claim_has_its_golden_bytes_and_damage_is_detected() {
        let sample = Claim { store: StoreId([0xaa; 16]), epoch: 7, mark: 0x0102, numbers: 0x1000 };
        let bytes = encode(&sample);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let want = format!(
            "5745495253544f0000000001{}0000000700000000000001020000000000001000{:08x}",
            "aa".repeat(16),
            crc32c(&bytes[..CHECKED])
        );
        assert_eq!(hex, want);
        assert_eq!(decode(&bytes), Ok(sample));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            decode(&bad).unwrap_err();
        }
        (0..bytes.len()).for_each(|len| assert!(decode(&bytes[..len]).is_err(), "{len} bytes"));
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    fn store(memory: &Memory) -> Store {
        Store::open_on(Arc::new(memory.clone())).unwrap()
    }

    fn ask(store: &Store, expected: u64, next: u64, claim: Claim) -> ClaimReply {
        store.claim(Some(&Claiming { expected, next, claim }), false).unwrap()
    }

    #[test]
    fn the_first_claim_needs_numbers_above_all_objects_and_later_ones_the_mark_of_the_last() {
        let memory = Memory::new("m", 1 << 30);
        Store::format_on(&memory, Fsid([1; 16])).unwrap();
        let opened = store(&memory);
        let extent = WriteExtent { offset: 0, len: 1, crc32c: 0 };
        opened
            .object(types::ObjectId::stream_0(types::FileId(0x12345)))
            .write(&opened, Generation(1), (&[extent], 0), [b"x", &[]])
            .unwrap();
        assert_eq!(opened.claim(None, false).unwrap(), ClaimReply { highest: Some(0x12345), ..Default::default() });
        let refused = ask(&opened, 0, 0x12345, claim(1, 10));
        assert_eq!(refused, ClaimReply { highest: Some(0x12345), ..Default::default() });
        assert!(!ask(&opened, 9, 0x12346, claim(1, 10)).taken, "the iod remembers no store");
        let taken = ClaimReply { taken: true, remembered: Some(claim(1, 10)), highest: None };
        assert_eq!(ask(&opened, 0, 0x12346, claim(1, 10)), taken);
        drop(opened);

        let opened = store(&memory);
        let still = ClaimReply { taken: false, ..taken };
        assert_eq!(ask(&opened, 0, u64::MAX, claim(1, 11)), still, "the iod remembers a store");
        assert_eq!(ask(&opened, 9, u64::MAX, claim(1, 11)), still, "the mark of another copy");
        assert_eq!(ask(&opened, 10, u64::MAX, claim(2, 11)), still, "the mark of another store");
        assert_eq!(ask(&opened, 10, 0, claim(1, 10)), taken, "the same claim again");
        assert_eq!(ask(&opened, 10, 0, claim(1, 11)).remembered, Some(claim(1, 11)));
        assert_eq!(opened.claim(None, true).unwrap().highest, Some(0x12345));
        let no_mark = Claiming { expected: 11, next: 0, claim: claim(1, 0) };
        assert_eq!(opened.claim(Some(&no_mark), false).unwrap_err().status, Status::Inval);
    }

    #[test]
    fn an_interrupted_claim_is_complete_or_absent() {
        for fails in [Operation::Create, Operation::Write, Operation::Sync, Operation::Rename, Operation::SyncFolder] {
            for lose in 0..2 {
                let memory = Memory::new("m", 1 << 30);
                Store::format_on(&memory, Fsid([1; 16])).unwrap();
                let opened = store(&memory);
                ask(&opened, 0, 2, claim(1, 10));
                memory.inject(move |operation, _| {
                    (operation == fails).then(|| io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
                });
                let next = Claiming { expected: 10, next: 2, claim: claim(1, 11) };
                assert!(opened.claim(Some(&next), false).is_err(), "{fails:?}");
                assert_eq!(opened.claim(None, false).unwrap().remembered, Some(claim(1, 10)));
                drop(opened);
                memory.heal();
                memory.power_cut(&mut |below| lose % below.max(1));
                let found = store(&memory).claim(None, false).unwrap().remembered.unwrap();
                assert!(found == claim(1, 10) || found == claim(1, 11), "{fails:?}: {found:?}");
                ask(&store(&memory), found.mark, 2, claim(1, 12));
                assert_eq!(store(&memory).claim(None, false).unwrap().remembered, Some(claim(1, 12)));
            }
        }
    }

    #[test]
    fn a_damaged_claim_file_is_refused_with_a_remedy() {
        let memory = Memory::new("m", 1 << 30);
        Store::format_on(&memory, Fsid([1; 16])).unwrap();
        ask(&store(&memory), 0, 2, claim(1, 10));
        let file = memory.open(STORE).unwrap();
        file.write_at(b"?", &[], 20).unwrap();
        drop(file);
        let error = Store::open_on(Arc::new(memory)).map(drop).unwrap_err();
        assert!(matches!(&error, StoreError::DamagedClaim { .. }), "{error}");
        assert!(error.to_string().contains("remove the file"), "{error}");
    }
}
