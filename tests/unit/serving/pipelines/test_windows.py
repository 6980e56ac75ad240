import numpy as np, pytest
from tests.simulators.pipelines import PipelineRig, spec
WINDOWS='''
[input]
pcm = "FP32[-1]"
[[step]]
name = "frames"
window = { of = "pcm", rows = 4, hop = 2 }
[[step]]
name = "vad"
model = "m"
of = "frames.window"
[output]
speech = "vad.y"
loudest = "max(vad.y)"
n = "count(frames)"
'''
@pytest.mark.asyncio
async def test_x():
    rig=PipelineRig()
    rig.model("m",lambda i:{"y":i["x"].sum(axis=1,keepdims=True)},(spec("x",4),),(spec("y",1),))
    rig.pipeline(WINDOWS)
    await rig.begin()
    print(rig.repository.index())
    for k in (3,3,1,9):
        print(await rig.ask({"pcm":np.arange(k,dtype=np.float32)[None]}))
