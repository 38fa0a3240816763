from tracker.presets import mot17, mot20

ALL = {'mot17': mot17.SETTINGS, 'mot20': mot20.SETTINGS}
