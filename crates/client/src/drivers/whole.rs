//! A trivial layout kind for tests: the whole file is one object on one server, without stripes.

use super::{
    Attempt, Driver, Drivers, Fixture, Found, Layout, NotDone, Payload, ReadDone, ServerFault, Share, Written,
};
use crate::placement::PlacedObject;
use crate::{Error, Placement, Result};
use async_trait::async_trait;
use bytes::Bytes;
use layout::kinds::{Kind, KindId};
use layout::{Distribution, DistributionId};
use std::sync::{Arc, Mutex};
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, FileId, Generation, IodId, ObjectId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The layout kind `whole`.
struct Whole;

impl Kind for Whole {
    const ID: KindId = KindId::new(0x8000_0001, "whole");
    type Body = Body;
    type Device = IodAddress;
}

/// The body of a layout of kind `whole`.
struct Body {
    generation: u32,
    durable: u64,
}

impl Xdr for Body {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.generation);
        out.u64(self.durable);
    }

    fn decode(input: &mut Reader) -> std::result::Result<Self, Malformed> {
        Ok(Body { generation: input.u32()?, durable: input.u64()? })
    }
}

/// The device address of the server; empty, because the server is in this process.
struct IodAddress;

impl Xdr for IodAddress {
    fn encode(&self, _: &mut Writer) {}

    fn decode(_: &mut Reader) -> std::result::Result<Self, Malformed> {
        Ok(IodAddress)
    }
}

/// The state of the server, which stores the whole file.
#[derive(Default)]
struct Server {
    bytes: Vec<u8>,
    /// The bytes that survive a restart of the server.
    durable: Vec<u8>,
    starts: u64,
    /// The smallest layout generation that the server accepts; a fence increases it.
    generation: u32,
    fault: Option<ServerFault>,
    received: u64,
}

impl Server {
    fn verifier(&self) -> Verifier {
        Verifier(self.starts.to_be_bytes())
    }

    fn write(&mut self, parts: &[ByteRange], data: &[u8]) {
        let mut data = data.iter();
        for part in parts {
            self.bytes.resize(self.bytes.len().max(part.end() as usize), 0);
            let to = &mut self.bytes[part.offset as usize..part.end() as usize];
            to.iter_mut().zip(&mut data).for_each(|(to, from)| *to = *from);
        }
    }

    fn commit(&mut self) -> Verifier {
        self.durable.clone_from(&self.bytes);
        self.verifier()
    }
}

/// A file with a layout of kind `whole`, with its driver and its server.
pub(crate) struct WholeFile(Arc<Mutex<Server>>);

impl WholeFile {
    pub(super) fn new() -> Self {
        WholeFile(Arc::default())
    }

    fn change(&self, act: impl FnOnce(&mut Server)) {
        act(&mut self.0.lock().unwrap());
    }

    /// Returns the driver of the layout kind `whole` for this file's server.
    pub(super) fn driver(&self) -> impl Driver + use<> {
        WholeDriver(self.0.clone())
    }
}

impl Fixture for WholeFile {
    async fn grant(&self, durable: u64) -> Arc<dyn Layout> {
        let body = Body { generation: self.0.lock().unwrap().generation, durable };
        let drivers = Drivers { all: vec![Box::new(self.driver())] };
        let (kind, layout) = drivers.attach(Whole::ID.number(), &body.to_bytes()).await.unwrap();
        assert_eq!(kind, Whole::ID);
        layout
    }

    fn fail(&self, _: usize, fault: Option<ServerFault>) {
        self.change(|server| server.fault = fault);
    }

    fn restart(&self, _: usize) {
        self.change(|server| {
            server.bytes.clone_from(&server.durable);
            server.starts += 1;
        });
    }

    async fn lose(&self, _: usize) {
        self.change(|server| (server.bytes, server.durable) = Default::default());
    }

    async fn truncate(&self, size: u64) {
        self.change(|server| {
            server.bytes.resize(size as usize, 0);
            server.commit();
        });
    }

    async fn fence(&self) {
        self.change(|server| server.generation += 1);
    }

    fn received(&self) -> Vec<u64> {
        vec![self.0.lock().unwrap().received]
    }
}

struct WholeDriver(Arc<Mutex<Server>>);

#[async_trait]
impl Driver for WholeDriver {
    type Kind = Whole;

    async fn attach(&self, body: Body) -> Result<Arc<dyn Layout>> {
        let Body { generation, durable } = body;
        Ok(Arc::new(WholeLayout { server: self.0.clone(), generation, durable: Mutex::new(Some(durable)) }))
    }
}

struct WholeLayout {
    server: Arc<Mutex<Server>>,
    generation: u32,
    /// The durable size of the file, as far as the client knows it; `None` after a truncate.
    durable: Mutex<Option<u64>>,
}

impl WholeLayout {
    /// Sends a request to the server. `changes` says that the request changes the file; if such a request gets no
    /// reply, the outcome is [`NotDone::Unanswered`].
    fn request<T>(&self, lane: usize, changes: bool, act: impl FnOnce(&mut Server) -> T) -> Attempt<T> {
        let error = |what: &str| Error::connection(what.to_owned());
        if lane != 0 {
            return Err(NotDone::NotAttempted(error("there is one lane")));
        }
        let mut server = self.server.lock().unwrap();
        match server.fault {
            Some(ServerFault::Unreachable) => return Err(NotDone::NotAttempted(error("unreachable"))),
            Some(ServerFault::Failing) => return Err(NotDone::Failed(error("failing"))),
            Some(ServerFault::Silent) | None => server.received += 1,
        }
        if self.generation < server.generation {
            return Err(NotDone::Stale(error("fenced")));
        }
        let answer = act(&mut server);
        match server.fault {
            None => Ok(answer),
            Some(_) if changes => Err(NotDone::Unanswered(error("silent"))),
            Some(_) => Err(NotDone::NotAttempted(error("silent"))),
        }
    }

    fn learn(&self, size: u64) {
        if let Some(durable) = &mut *self.durable.lock().unwrap() {
            *durable = size.max(*durable);
        }
    }

    fn durable(&self) -> u64 {
        self.durable.lock().unwrap().unwrap_or(0)
    }
}

#[async_trait]
impl Layout for WholeLayout {
    fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    fn is_old(&self) -> bool {
        false
    }

    fn lanes(&self) -> usize {
        1
    }

    fn shares(&self, ranges: &[ByteRange]) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let mut left = 0;
        for range in ranges {
            let mut range = *range;
            while !range.is_empty() {
                if left == 0 {
                    shares.push(Share { lane: 0, parts: Vec::new() });
                    left = PAYLOAD_MAX as u64;
                }
                let part = ByteRange { len: range.len.min(left), ..range };
                range = ByteRange { offset: part.end(), len: range.len - part.len };
                left -= part.len;
                let Some(share) = shares.last_mut() else { continue };
                match share.parts.last_mut() {
                    Some(last) if last.end() == part.offset => last.len += part.len,
                    _ => share.parts.push(part),
                }
            }
        }
        shares
    }

    fn reaches(&self, size: u64) -> bool {
        self.durable() >= size
    }

    fn truncating(&self) {
        *self.durable.lock().unwrap() = None;
    }

    async fn read(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone> {
        let bytes = self.request(lane, false, |server| server.bytes.clone())?;
        let mut done = ReadDone::default();
        for part in parts {
            let at = |end: u64| end.clamp(part.offset, part.end());
            let (has, durable) = (at(bytes.len() as u64), at(self.durable().max(bytes.len() as u64)));
            if has > part.offset {
                let data = Bytes::copy_from_slice(&bytes[part.offset as usize..has as usize]);
                done.runs.push((part.offset, Found::Data(data)));
            }
            if durable > has {
                done.lost.push(ByteRange { offset: has, len: durable - has });
            }
            if part.end() > durable {
                done.runs.push((durable, Found::Nothing(part.end() - durable)));
            }
        }
        Ok(done)
    }

    async fn write(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written> {
        let data = payload.data.to_bytes();
        let verifier = self.request(lane, true, |server| {
            server.write(parts, &data);
            let size = server.bytes.len() as u64;
            (if stable { server.commit() } else { server.verifier() }, size)
        });
        let (verifier, size) = verifier?;
        if stable {
            self.learn(size);
        }
        Ok(Written { verifier, stable })
    }

    async fn commit(&self, lane: usize) -> Attempt<Verifier> {
        let (verifier, size) = self.request(lane, false, |server| (server.commit(), server.bytes.len() as u64))?;
        self.learn(size);
        Ok(verifier)
    }

    async fn punch(&self, range: ByteRange) -> Attempt<()> {
        self.request(0, true, |server| {
            let end = (range.end() as usize).min(server.bytes.len());
            server.bytes[(range.offset as usize).min(end)..end].fill(0);
            server.commit();
        })
    }

    async fn next_data(&self, offset: u64) -> Attempt<Option<ByteRange>> {
        let bytes = self.request(0, false, |server| server.bytes.clone())?;
        let end = self.durable().max(bytes.len() as u64);
        // Durable bytes beyond the end of the server's file are lost, and lost bytes count as data.
        let is_data = |at: &u64| bytes.get(*at as usize).is_none_or(|byte| *byte != 0);
        let Some(start) = (offset..end).find(is_data) else { return Ok(None) };
        let len = (start..end).take_while(is_data).count() as u64;
        Ok(Some(ByteRange { offset: start, len }))
    }

    async fn placement(&self, file_size: u64) -> Attempt<Placement> {
        let size = self.request(0, false, |server| server.bytes.len() as u64)?;
        let distribution = Distribution::new(DistributionId::SimpleStripe, 64, 1);
        let distribution = distribution.map_err(|e| NotDone::Failed(Error::protocol(e.to_string())))?;
        let object = PlacedObject { iod: IodId([0; 16]), addresses: Vec::new(), size, allocated: size };
        Ok(Placement { distribution, object: ObjectId::stream_0(FileId(1)), objects: vec![object], file_size })
    }
}
