"""Running inference servers, behind one asynchronous protocol (`base.EngineClient`)."""
