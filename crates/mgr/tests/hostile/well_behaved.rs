//! A well-behaved client that measures the response time of each request during attacks.

use crate::data::{Data, Target};
use crate::link::Place;
use crate::nfs::Session;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};
use wire::nfs4::*;

/// Timeout of the well-behaved client's connections, far longer than any reply should take.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: &[u8] = b"the file of a good client";
const OBJECT: u64 = 1 << 20;

pub struct WellBehaved {
    session: Session,
    data: Data,
    /// Response times of this client's requests.
    pub times: Times,
}

/// Response times of the well-behaved client, for each kind of request.
pub type Times = BTreeMap<&'static str, Vec<Duration>>;

impl WellBehaved {
    pub fn new(mgr: &Place, iod: &Target) -> io::Result<Self> {
        let session = Session::establish(mgr, 0, false, PATIENCE)?;
        let mut good = WellBehaved { session, data: Data::good(iod)?, times: Times::new() };
        let file = createtype4::NF4DIR;
        let attrs = fattr4 { attrmask: vec![], attr_vals: Bytes::new() };
        let create = CREATE4args { objtype: file, objname: Bytes::from_static(FILE), createattrs: attrs };
        good.session.ops(vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_CREATE(create)])?;
        Ok(good)
    }

    fn timed<T>(&mut self, kind: &'static str, work: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        let begun = Instant::now();
        let done = work(self)?;
        self.times.entry(kind).or_default().push(begun.elapsed());
        Ok(done)
    }

    /// Sends one round of requests: a lookup, a create, a remove, a write and a read. Fails if any of them fails.
    pub fn round(&mut self, number: u64) -> io::Result<()> {
        let name = Bytes::from_static(FILE);
        let look = || LOOKUP4args { objname: name.clone() };
        let asked = GETATTR4args { attr_request: vec![1 << FATTR4_TYPE | 1 << FATTR4_SIZE] };
        let looked = self.timed("look", |good| {
            let ops = vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_LOOKUP(look()), nfs_argop4::OP_GETATTR(asked)];
            good.session.ops(ops)
        })?;
        assert_eq!(looked.len(), 3);
        let sub = Bytes::from(format!("sub {number}"));
        let attrs = fattr4 { attrmask: vec![], attr_vals: Bytes::new() };
        let create = CREATE4args { objtype: createtype4::NF4DIR, objname: sub.clone(), createattrs: attrs };
        let inside = [nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_LOOKUP(look())];
        let with = |op| inside.iter().cloned().chain([op]).collect::<Vec<_>>();
        let make = with(nfs_argop4::OP_CREATE(create));
        self.timed("make", |good| good.session.ops(make))?;
        let remove = with(nfs_argop4::OP_REMOVE(REMOVE4args { target: sub }));
        self.timed("remove", |good| good.session.ops(remove))?;
        let bytes = number.to_be_bytes().repeat(512);
        self.timed("write", |good| good.data.write(OBJECT, 8192, &bytes))?;
        assert!(
            self.timed("read", |good| good.data.reads(OBJECT, 8192, &bytes))?,
            "round {number} reads other bytes than it wrote"
        );
        Ok(())
    }
}

/// Returns the quantile `part` (0 to 1) of the response times.
pub fn quantile(times: &[Duration], part: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}
